"""Compares the nodes' clocks, which are the time source of this store; a node whose clock deviates refuses to serve.

Margin and grace (LEASE-1) absorb a skew of SKEW_MAX_MS between nodes. A larger skew is dangerous in both directions: a
node that is ahead takes leases over too early, and one that is behind lets them live too long. So each node writes its
instant to a key of its own every ANNOUNCE_SECONDS, and reads its peers' in the same transaction (see
`peer_clocks`).

- *Behind* is certain at once: this node reads an instant that was written earlier but lies more than SKEW_MAX_MS in its
  future. The instant may be a peer's or a lock record's. The node then decides nothing until its clock has passed it.
- *Ahead* takes two samples, because an old instant may belong to a node that is gone. A starting node therefore writes
  that it is `joining`, and waits until every serving peer has written again or been silent for SILENCE_SECONDS. A value
  that appears between two samples was written after the first one. If it still lies more than SKEW_MAX_MS before the
  instant of the first sample, this node is ahead. Only the joining node gives way.
- A node serves only if its clock was compared within the last FRESH_MS *of its own clock*. So a process that was
  suspended, or whose clock jumped, compares again before it decides anything.

A node that joins while no other one serves has no clock to compare with. It compares with the last instants of the
nodes that are gone, and records a jump before it serves (LEASE-17). Every sample reads the record, so it binds all
nodes: a node that serves has sampled since. While a node serves its clock cannot jump, because no one can set it.

Of two nodes that join at once, each writes `serving` before its last sample, so one of them sees the other.

A node that stops leaves its last instant for a day: a restart with a clock behind it is refused. Two cases stay
undetected: a clock of the only node that runs too fast, whose leases follow it; and a clock that drifts by more than
SKEW_MAX_MS between two announcements, until the second.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from ...ports.clock import Clock
from ...ports.lock_store import TakeoverHold, hold_in_force
from ...rules.clock_history import JUMP_MS_MIN, ClockHistory
from ...rules.errors import StoreUnavailableError
from ...rules.lease import RETENTION_MS
from ..errors import ClockDamagedError, clock_behind, format_instant, refuse_clock_far_behind
from .endpoints import Endpoints
from .layout import Layout
from .peer_clocks import SAMPLE_SECONDS, PeerClock, PeerClocks
from .schema_guard import SchemaGuard

SKEW_MAX_MS: Final = 1_000
FRESH_MS: Final = 3_000
ANNOUNCE_SECONDS: Final = 1.0
SAMPLES_APART_MS_MAX: Final = 500
OBSERVE_SECONDS_MAX: Final = 6.0
GONE_SECONDS: Final = 60.0
LOOK_SECONDS_MAX: Final = 2.0
SET_RIGHT: Final = (
    "set the clock of the machine that is wrong, then restart its node: a node reads its machine's clock only once"
)


class ClockSkewMonitor:
    """Provides this node's clock after comparing it with the others.

    Call `start` once, `now_ms` before each decision, and `close` at the end.
    """

    def __init__(self, clock: Clock, endpoints: Endpoints, layout: Layout, guard: SchemaGuard) -> None:
        self._clock: Final = clock
        self._peer_clocks: Final = PeerClocks(clock, endpoints, layout, guard)
        self.node_key: Final = self._peer_clocks.own_key
        self._newest_ms = 0
        self._must_pass_ms = 0
        self._compared_at_ms: int | None = None
        self._fault: tuple[StoreUnavailableError, float] | None = None
        self._comparing: Final = asyncio.Lock()
        self._announcing: asyncio.Task[None] | None = None
        self._is_jump_recorded = False
        self.last_free_from_ms: Callable[[], Awaitable[int]] | None = None
        """Returns the latest end of a grace in the store, for the report of a hold."""

    @property
    def history(self) -> ClockHistory:
        """The past of the store's clock as of the last sample."""
        return self._peer_clocks.history

    def takeover_hold(self) -> TakeoverHold | None:
        """The hold that is in force by this node's clock."""
        return hold_in_force(self.history, self._clock.now_ms())

    async def start(self) -> None:
        """Compare for the first time, then continue in the background.

        A clock that deviates from live nodes, or whose record is damaged, does not prevent the start; `now_ms` refuses
        as long as it is so. A clock behind the instant of a node that is gone went back over a restart:
        StoreUnavailableError `clock_behind`.
        """
        with contextlib.suppress(_SkewError, ClockDamagedError):
            await self._join()
        now_ms = self._clock.now_ms()
        gone = (
            peer.node.now_ms for peer in self._peer_clocks.peers.values() if not peer.is_live and peer.node.was_used
        )
        newest_ms = max(gone, default=0)
        if newest_ms > now_ms + SKEW_MAX_MS:
            await self._peer_clocks.delete(self.node_key)
            refuse_clock_far_behind("the machine's clock", now_ms, newest_ms, SKEW_MAX_MS)
        loaded = (peer.node.now_ms for peer in self._peer_clocks.peers.values() if peer.node.state == "loaded")
        self._newest_ms = max(self._newest_ms, *loaded, 0)
        self._announcing = asyncio.create_task(self._announce_periodically(), name="etcd-clocks")

    async def now_ms(self) -> int:
        """This node's instant to decide by. Raises StoreUnavailableError `clock_skew` or `clock_behind` if unsafe."""
        now_ms = self._monotonic_now_ms()
        if self._is_fresh(now_ms):
            return now_ms
        await self._compare()
        return self._monotonic_now_ms()

    def peers(self) -> Mapping[bytes, PeerClock]:
        """The other nodes by their keys, as of the latest sample."""
        return self._peer_clocks.peers

    def refuse_future_record(self, written_at_ms: int, now_ms: int) -> None:
        """Raise StoreUnavailableError if a record that was read before `now_ms` was written in this node's future."""
        if written_at_ms > now_ms + SKEW_MAX_MS:
            self._must_pass_ms = max(self._must_pass_ms, written_at_ms - SKEW_MAX_MS)
            raise _behind_error(written_at_ms, now_ms)

    def is_alive(self, node_key: bytes) -> bool:
        """Whether that other node serves, as of the last sample."""
        return node_key in self._peer_clocks.peers and self._peer_clocks.peers[node_key].is_live

    async def newest_ms(self) -> int:
        """The newest instant that any node has written, this one included."""
        await self._peer_clocks.sample(None)
        return max(self._clock.now_ms(), self._peer_clocks.newest_used_ms())

    async def advance_to(self, newest_ms: int, history: ClockHistory) -> None:
        """Prevent every node, this one included, from deciding by an earlier instant, and continue that history.

        If this node's clock is ahead of `newest_ms`, the time of the store that was read, that is a jump.
        """
        now_ms = self._clock.now_ms()
        await self._peer_clocks.write_loaded(newest_ms, history.after_jump(now_ms, now_ms - newest_ms))
        self._newest_ms = max(self._newest_ms, newest_ms)

    async def announce(self) -> None:
        """Write this node's instant and compare, now. Raises StoreUnavailableError."""
        async with self._comparing:
            if not self._is_fresh(self._clock.now_ms()):
                await self._join()
                return
            try:
                await self._peer_clocks.sample("serving")
            except ClockDamagedError as error:
                self._note_fault(error)
                raise
            self._mark_compared()

    async def delete_gone_nodes(self) -> None:
        """Delete the keys of nodes that have been gone for GONE_SECONDS; the newest instant stays for a day."""
        silent_since = asyncio.get_running_loop().time() - GONE_SECONDS
        gone = [(peer.node.now_ms, key) for key, peer in self._peer_clocks.peers.items() if peer.seen_at < silent_since]
        newest = max(((at_ms, key) for at_ms, key in gone if self._peer_clocks.peers[key].node.was_used), default=None)
        for at_ms, key in gone:
            if (at_ms, key) != newest or at_ms + RETENTION_MS < self._clock.now_ms():
                await self._peer_clocks.delete(key, self._peer_clocks.peers[key].revision)

    async def close(self) -> None:
        """Stop, and leave this node's last instant in etcd if the node decided by it."""
        if self._announcing is None:
            return
        self._announcing.cancel()
        await asyncio.wait([self._announcing])
        with contextlib.suppress(StoreUnavailableError):
            await (
                self._peer_clocks.delete(self.node_key)
                if self._compared_at_ms is None
                else self._peer_clocks.sample("left")
            )

    def _monotonic_now_ms(self) -> int:
        """The clock, which must have passed every instant that this node has used or read."""
        now_ms = self._clock.now_ms()
        if now_ms < self._newest_ms:
            raise clock_behind(now_ms, self._newest_ms)
        if now_ms < self._must_pass_ms:
            raise _behind_error(self._must_pass_ms + SKEW_MAX_MS, now_ms)
        self._newest_ms = now_ms
        return now_ms

    def _is_fresh(self, now_ms: int) -> bool:
        return self._compared_at_ms is not None and now_ms - self._compared_at_ms <= FRESH_MS

    async def _announce_periodically(self) -> None:
        while True:
            # Jitter: nodes in step would always see each other's instants equally old.
            await asyncio.sleep(ANNOUNCE_SECONDS * random.uniform(0.7, 1.0))  # noqa: S311
            with contextlib.suppress(StoreUnavailableError):
                await self.announce()

    async def _compare(self) -> None:
        """Make the comparison fresh, once for all concurrent callers. Raises StoreUnavailableError."""
        async with self._comparing:
            if self._is_fresh(self._clock.now_ms()):
                return
            if self._fault is not None and asyncio.get_running_loop().time() < self._fault[1] + ANNOUNCE_SECONDS:
                raise StoreUnavailableError(self._fault[0].cause_code, self._fault[0].message)
            await self._join()

    async def _join(self) -> None:
        """Wait for the peers' instants, then serve. Raises StoreUnavailableError."""
        self._compared_at_ms = None
        try:
            await self._observe_peers()
            await self._record_jump()
            await self._peer_clocks.sample("serving")
            self._refuse_if_ahead()
            self._mark_compared()
        except _SkewError:
            await self._peer_clocks.sample("joining")
            raise
        except ClockDamagedError as error:
            self._note_fault(error)
            raise

    def _note_fault(self, error: StoreUnavailableError) -> None:
        """Decide nothing, and ask again after ANNOUNCE_SECONDS."""
        self._compared_at_ms, self._fault = None, (error, asyncio.get_running_loop().time())

    async def _record_jump(self) -> None:
        """Once, before this node serves: record a jump of its clock since the nodes that are gone."""
        while not self._is_jump_recorded:
            by_ms, now_ms = self._peer_clocks.unproven_ms(), self._clock.now_ms()
            last_ms = 0 if by_ms is not None and by_ms < JUMP_MS_MIN else await self._known_last_free_from_ms()
            if by_ms is None:
                by_ms = 0 if last_ms == 0 else now_ms  # no lease, or no knowledge of any time
            history = self.history.after_jump(now_ms, by_ms, last_ms)
            is_written = history is self.history and self._peer_clocks.has_history
            self._is_jump_recorded = is_written or await self._peer_clocks.write_history(history)
            if not self._is_jump_recorded:
                await self._peer_clocks.sample("joining")

    async def _known_last_free_from_ms(self) -> int | None:
        """None if reading all records takes too long; the report then states the longest hold."""
        try:
            async with asyncio.timeout(LOOK_SECONDS_MAX):
                return None if self.last_free_from_ms is None else await self.last_free_from_ms()
        except TimeoutError:
            return None

    async def _observe_peers(self) -> None:
        """Return when every serving peer has written an instant that agrees with this clock, or is silent."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + OBSERVE_SECONDS_MAX
        compared: set[bytes] = set()
        await self._peer_clocks.sample("joining", is_first=True)
        self._refuse_if_behind()
        while self._peer_clocks.lacks_live_peer(compared):
            if loop.time() > ends_at:
                raise StoreUnavailableError("clocks_unknown", "the nodes' clocks could not be compared in time")
            await asyncio.sleep(SAMPLE_SECONDS)
            await self._peer_clocks.sample(None)
            self._refuse_if_behind()
            compared |= self._refuse_if_ahead()

    def _mark_compared(self) -> None:
        """Mark the comparison fresh. Raises _SkewError if this clock is behind."""
        self._compared_at_ms = None
        self._refuse_if_behind()
        self._fault, self._compared_at_ms = None, self._peer_clocks.sampled_ms

    def _refuse_if_behind(self) -> None:
        now_ms = self._clock.now_ms()
        newest_ms = self._peer_clocks.newest_used_ms()
        if newest_ms > now_ms + SKEW_MAX_MS:
            raise _behind_error(newest_ms, now_ms)

    def _refuse_if_ahead(self) -> set[bytes]:
        """The peers that wrote between the last two samples and agree. Raises _SkewError if one does not.

        Samples too far apart prove nothing: a value in between may be as old as the first sample.
        """
        if self._clock.now_ms() - self._peer_clocks.previous_sampled_ms > SAMPLES_APART_MS_MAX:
            return set()
        new = {
            key: peer for key, peer in self._peer_clocks.peers.items() if peer.is_new and peer.node.state == "serving"
        }
        for peer in new.values():
            ahead_ms = self._peer_clocks.previous_sampled_ms - peer.node.now_ms
            if ahead_ms > SKEW_MAX_MS:
                error = _SkewError(
                    "clock_skew",
                    f"this node's clock is {ahead_ms / 1_000:.1f} s ahead of another node's: {SET_RIGHT}",
                )
                self._note_fault(error)
                raise error
        return set(new)


class _SkewError(StoreUnavailableError):
    """`clock_skew`; the message says in which direction, and what to do."""


def _behind_error(written_at_ms: int, now_ms: int) -> _SkewError:
    return _SkewError(
        "clock_skew",
        f"this node's clock reads {format_instant(now_ms)} but another node has written "
        f"{format_instant(written_at_ms)}, {(written_at_ms - now_ms) / 1_000:.1f} s later: "
        f"{SET_RIGHT}; if a clock was far ahead, see volcano-locks reset-clock",
    )
