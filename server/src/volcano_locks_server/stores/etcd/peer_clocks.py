"""Reads and writes the instants of the nodes, which each node keeps in a key of its own, and the clock's history.

A sample reads the instants of all peers and the history. Given a state, it writes this node's instant in the same
transaction.
"""

import asyncio
from contextlib import suppress
from typing import Final, Literal, NamedTuple, Self
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from ...ports.clock import Clock, mark_of
from ...rules.clock_history import NO_HISTORY, ClockHistory, ClockMark, unproven_ms
from ...rules.errors import DamagedRecordError
from ...rules.record_check import INSTANT_MS_MAX, damage_of_history
from ..damage import decoded, shown_stored, sorted_out
from ..errors import CLOCK_RECORD, ClockDamagedError
from .endpoints import Endpoints
from .layout import Layout, end_of
from .schema_guard import SchemaGuard
from .transactions import Compare, Delete, Get, KeyValue, Put

SAMPLE_SECONDS: Final = 0.1
SILENCE_SECONDS: Final = 3.5

State = Literal["joining", "serving", "left", "loaded"]


class NodeInstant(msgspec.Struct, omit_defaults=True):
    """What a node writes about itself: its instant, and what it knows about it (see `ClockMark`).

    `jumps_ms` is the sum of the jumps that were recorded by then. `has_clock`: the clock's record existed by then, and
    is never deleted. The fields after `state` have their defaults if a node of the first release wrote it.
    """

    now_ms: int
    state: State
    boot_id: str = ""
    boot_ms: int = 0
    is_synchronised: bool = False
    jumps_ms: int = 0
    has_clock: bool = False

    @classmethod
    def of(cls, mark: ClockMark, state: State, history: ClockHistory, *, has_clock: bool = True) -> Self:
        return cls(mark.now_ms, state, mark.boot_id, mark.boot_ms, mark.is_synchronised, history.jumps_ms, has_clock)

    @property
    def mark(self) -> ClockMark:
        return ClockMark(self.now_ms, self.boot_id, self.boot_ms, self.is_synchronised)

    def mark_after(self, history: ClockHistory, now: ClockMark) -> ClockMark:
        """The mark on the scale of `now`: in the same boot, the jumps that were recorded since are not found again.

        The instant of another boot proves nothing about the time since, so it is not moved.
        """
        if self.mark.continued_ms(now) is None or now.boot_ms < self.boot_ms:
            return self.mark
        return replace(self.mark, now_ms=self.now_ms + history.jumps_ms - self.jumps_ms)

    @property
    def was_used(self) -> bool:
        """Whether the node decided by this instant; a node that is still joining may be wrong about the time."""
        return self.state != "joining"


class PeerClock(NamedTuple):
    """Another node: what it wrote, at which revision, and the loop time at which this was new.

    `is_new` means that it was written between the last two samples.
    """

    node: NodeInstant
    revision: int
    seen_at: float
    is_new: bool

    @property
    def is_live(self) -> bool:
        """Whether a peer that served may still do so: it wrote, or was first seen, a moment ago."""
        silent_seconds = asyncio.get_running_loop().time() - self.seen_at
        return self.node.state == "serving" and silent_seconds <= SILENCE_SECONDS


class PeerClocks:
    """The peers and the history as of the last sample, and the instants of this node's clock at the last two."""

    def __init__(self, clock: Clock, endpoints: Endpoints, layout: Layout, guard: SchemaGuard | None = None) -> None:
        self._clock: Final = clock
        self._guard: Final = guard
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self.own_key: Final = layout.node(uuid4().hex)
        self.peers: dict[bytes, PeerClock] = {}
        self.sampled_ms = self.previous_sampled_ms = 0
        self.history = NO_HISTORY
        self._history_revision = 0

    @property
    def has_history(self) -> bool:
        """Whether the clock's record was there at the last sample."""
        return self._history_revision > 0

    async def sample(self, state: State | None, *, is_first: bool = False) -> None:
        """Write this node's `state` if given, and read the peers' and the schema key.

        Raises StoreUnavailableError, and ClockDamagedError as long as the clock's record is damaged.
        """
        before_ms = self._clock.now_ms()
        all_nodes = Get(self._layout.nodes, end_of(self._layout.nodes))
        reads = Get(self._layout.schema), Get(self._layout.clock), all_nodes
        if state is None:
            result = await self._endpoints.read(*reads)
        else:
            instant = NodeInstant.of(mark_of(self._clock, before_ms), state, self.history, has_clock=self.has_history)
            result = await self._endpoints.write((), (Put(self.own_key, msgspec.json.encode(instant)), *reads))
        if self._guard is not None:
            self._guard.check(result.one(-3))
        self.previous_sampled_ms, self.sampled_ms = self.sampled_ms, before_ms
        seen_at = asyncio.get_running_loop().time()
        before, self.peers = self.peers, {}
        for found in result.reads[-1]:
            known = before.get(found.key)
            if found.key == self.own_key:
                continue
            if known is not None and known.revision == found.mod_revision:
                self.peers[found.key] = known._replace(is_new=False) if known.is_new else known
                continue
            with suppress(DamagedRecordError):  # a live node writes its instant again within a second
                self.peers[found.key] = PeerClock(node_instant_in(found), found.mod_revision, seen_at, not is_first)
        self._note_history(result.one(-2))

    def newest_used_ms(self) -> int:
        """The newest instant that a peer has used for a decision, 0 if none has."""
        return max((peer.node.now_ms for peer in self.peers.values() if peer.node.was_used), default=0)

    def unproven_ms(self) -> int | None:
        """How far this node's clock is ahead, without a record, of the time that is known to have passed since the
        newest instant of the nodes that are gone. 0 if one is alive: its clock has been compared with this one. None if
        there is no instant of any node: the store is new, or they were lost.
        """
        used = [peer for peer in self.peers.values() if peer.node.was_used]
        if not used:
            return None
        if any(peer.is_live for peer in used):
            return 0
        now, newest_ms = mark_of(self._clock, self._clock.now_ms()), self.newest_used_ms()
        return min(unproven_ms(newest_ms, peer.node.mark_after(self.history, now), now) for peer in used)

    async def write_history(self, history: ClockHistory) -> bool:
        """Write the history in place of the one that was last read; False if another node has written since."""
        put = Put(self._layout.clock, msgspec.json.encode(history))
        result = await self._endpoints.write([Compare(self._layout.clock, self._history_revision)], [put])
        if result.succeeded:
            self.history, self._history_revision = history, result.revision
        return result.succeeded

    def lacks_live_peer(self, compared: set[bytes]) -> bool:
        """Whether a live peer is not among `compared`."""
        return any(peer.is_live and key not in compared for key, peer in self.peers.items())

    async def offsets_ms(self) -> list[int]:
        """How far the clock of each serving peer is ahead of this one, within SAMPLE_SECONDS.

        Writes nothing, and takes about a second: until each peer has written again.
        """
        offsets: dict[bytes, int] = {}
        await self.sample(None, is_first=True)
        while self.lacks_live_peer(set(offsets)):
            await asyncio.sleep(SAMPLE_SECONDS)
            await self.sample(None)
            middle_ms = (self.previous_sampled_ms + self.sampled_ms) // 2
            offsets |= {key: peer.node.now_ms - middle_ms for key, peer in self.peers.items() if peer.is_new}
        return [offsets[key] for key, peer in self.peers.items() if key in offsets and peer.is_live]

    async def write_loaded(self, newest_ms: int, history: ClockHistory) -> None:
        """Store the newest instant of a loaded snapshot, as that of a node that is gone, and its clock's history."""
        now_ms = self._clock.now_ms()
        mark = mark_of(self._clock, now_ms).later(max(0, newest_ms - now_ms))
        loaded = Put(self._layout.node("loaded"), msgspec.json.encode(NodeInstant.of(mark, "loaded", history)))
        await self._endpoints.write((), [loaded, Put(self._layout.clock, msgspec.json.encode(history))])
        await self.sample(None)

    async def delete(self, node_key: bytes, revision: int | None = None) -> None:
        """Delete a node's keys, if its instant is still at `revision`."""
        compares = () if revision is None else (Compare(node_key, revision),)
        await self._endpoints.write(compares, [Delete(node_key), Delete(self._layout.signal(node_key))])

    def _note_history(self, found: KeyValue | None) -> None:
        if found is not None and found.mod_revision == self._history_revision:
            return
        is_expected = self.has_history or any(peer.node.has_clock for peer in self.peers.values())
        try:
            self.history = history_in(found, is_expected=is_expected)
        except DamagedRecordError as error:
            raise ClockDamagedError(error.reason) from error
        self._history_revision = 0 if found is None else found.mod_revision


def history_in(found: KeyValue | None, *, is_expected: bool) -> ClockHistory:
    """The history in the key of the clock, which may be missing unless it `is_expected`. Raises DamagedRecordError."""
    if found is None:
        if is_expected:
            raise DamagedRecordError(CLOCK_RECORD, "it was deleted")
        return NO_HISTORY
    try:
        history = msgspec.json.decode(found.value, type=ClockHistory)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRecordError(CLOCK_RECORD, str(error)[:200], shown_stored(found.value)) from error
    if (damage := damage_of_history(history)) is not None:
        raise DamagedRecordError(CLOCK_RECORD, damage, shown_stored(found.value))
    return history


class StoredClock(NamedTuple):
    """The clock's record in etcd, the instants of all nodes, and the record's damage, None if it is intact."""

    stored: KeyValue | None
    nodes: list[NodeInstant]
    damage: DamagedRecordError | None


async def find_clock(endpoints: Endpoints, layout: Layout) -> StoredClock:
    """Read them. Raises StoreUnavailableError."""
    result = await endpoints.read(Get(layout.clock), Get(layout.nodes, end_of(layout.nodes)))
    nodes, _damaged = sorted_out(decoded(result.reads[1], node_instant_in))
    try:
        history_in(result.one(0), is_expected=any(node.has_clock for node in nodes))
    except DamagedRecordError as error:
        return StoredClock(result.one(0), nodes, error)
    return StoredClock(result.one(0), nodes, None)


def node_instant_in(found: KeyValue) -> NodeInstant:
    """The instant in a value. Raises DamagedRecordError."""
    name = "node/" + found.key.rpartition(b"/")[2].decode("ascii", "backslashreplace")
    try:
        instant = msgspec.json.decode(found.value, type=NodeInstant)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRecordError(name, str(error)[:200], shown_stored(found.value)) from error
    if not 0 <= instant.now_ms <= INSTANT_MS_MAX:
        raise DamagedRecordError(name, "now_ms is not an instant", shown_stored(found.value))
    return instant
