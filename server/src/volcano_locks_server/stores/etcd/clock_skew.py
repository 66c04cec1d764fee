"""Nodes' clocks are the time authority here, so they are compared, and a node whose clock stands out serves nothing.

Margin and grace (LEASE-1) absorb a skew of SKEW_MAX_MS between nodes. A larger one is dangerous in both directions:
a node that is ahead takes leases over too early, one that is behind lets them live too long. So each node writes its
instant to a key of its own once in PULSE_SECONDS, and reads those of the others in the same transaction.

- *Behind* is certain and needs no further evidence: an instant that was written before I read it, but lies in my
  future by more than SKEW_MAX_MS. It may stand in a node's key or in any lock record. From then on nothing is judged
  until my clock has passed it.
- *Ahead* cannot be seen in one instant, because an old instant may belong to a node that is gone. So a node that
  begins watches first: it writes that it is `joining`, and waits until every node that serves has written anew, or
  has been silent for SILENCE_SECONDS. What is written anew between two looks of mine is as old as the first look at
  the most. If it lies more than SKEW_MAX_MS before that, I am ahead. The node that begins is the one that gives way.
- A node serves only while its clock was compared within the last FRESH_MS *of its own clock*. So a process that was
  stopped, or a clock that jumped, begins anew before it judges anything.

Two nodes that begin at once write that they serve before they look for the last time, so one sees the other.

A node that stops leaves its last instant behind for a day: a restart under a clock that is behind it is refused.
What this cannot see: a clock that was wrong while its node was the only one, judged by leases of that time; and a
clock that runs away by more than SKEW_MAX_MS within one pulse, until that pulse.
"""

import asyncio
import contextlib
import random
from typing import Final, Literal, NamedTuple
from uuid import uuid4

import msgspec

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ...rules.lease import RETENTION_MS
from ..errors import clock_behind, instant
from .endpoints import Members
from .layout import Layout, end_of
from .transactions import Delete, Guard, Put, Read

SKEW_MAX_MS: Final = 1_000
FRESH_MS: Final = 3_000
PULSE_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.1
LOOKS_APART_MS_MAX: Final = 500
SILENCE_SECONDS: Final = 3.5
WATCH_SECONDS_MAX: Final = 6.0
GONE_SECONDS: Final = 60.0

_State = Literal["joining", "serving", "left", "loaded"]


class _Node(msgspec.Struct):
    """What a node writes of itself."""

    now_ms: int
    state: _State


class _Peer(NamedTuple):
    """Another node as last seen: what it wrote, at which revision, and when (by the loop's time) that was new.

    `is_new`: it was written between my last look and the one before.
    """

    node: _Node
    revision: int
    seen_at: float
    is_new: bool


class Clocks:
    """This node's clock among the others. `start` once, then `now_ms` before anything is judged, `close` at the end."""

    def __init__(self, clock: Clock, members: Members, layout: Layout) -> None:
        self._clock: Final = clock
        self._members: Final = members
        self._layout: Final = layout
        self.node_key: Final = layout.node(uuid4().hex)
        self._peers: dict[bytes, _Peer] = {}
        self._looked_ms = self._looked_before_ms = 0
        self._newest_ms = 0
        self._must_pass_ms = 0
        self._compared_ms: int | None = None
        self._fault: tuple[StoreUnavailableError, float] | None = None
        self._comparing: Final = asyncio.Lock()
        self._pulse: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Compare for the first time, then go on in the background.

        A clock that stands out from nodes that live is no reason not to start: `now_ms` tells. One that is behind
        the instant of a node that is gone went back over a restart: StoreUnavailableError `clock_behind`.
        """
        with contextlib.suppress(_SkewError):
            await self._join()
        now_ms = self._clock.now_ms()
        gone = (peer.node.now_ms for peer in self._peers.values() if not self._lives(peer) and _counts(peer))
        newest_ms = max(gone, default=0)
        if newest_ms > now_ms + SKEW_MAX_MS:
            await self._forget(self.node_key)
            raise clock_behind(now_ms, newest_ms)
        loaded = (peer.node.now_ms for peer in self._peers.values() if peer.node.state == "loaded")
        self._newest_ms = max(self._newest_ms, *loaded, 0)
        self._pulse = asyncio.create_task(self._go_on(), name="etcd-clocks")

    async def now_ms(self) -> int:
        """This node's instant, to judge by. StoreUnavailableError `clock_skew` or `clock_behind` if it must not."""
        now_ms = self._passed()
        if self._is_fresh(now_ms):
            return now_ms
        await self._compare()
        return self._passed()

    def judge(self, written_at_ms: int, now_ms: int) -> None:
        """A record that was read before `now_ms` tells that instant: StoreUnavailableError if it is in my future."""
        if written_at_ms > now_ms + SKEW_MAX_MS:
            self._must_pass_ms = max(self._must_pass_ms, written_at_ms - SKEW_MAX_MS)
            raise _behind(written_at_ms, now_ms)

    def is_alive(self, node_key: bytes) -> bool:
        """Whether that other node serves, as far as is known here."""
        return node_key in self._peers and self._lives(self._peers[node_key])

    async def offsets_ms(self) -> list[int]:
        """How far the clock of each other node that serves is ahead of this one, give or take LOOK_SECONDS.

        Writes nothing, and takes as long as the others need to write anew: about PULSE_SECONDS.
        """
        offsets: dict[bytes, int] = {}
        await self._look(None, is_first=True)
        while any(self._lives(peer) and key not in offsets for key, peer in self._peers.items()):
            await asyncio.sleep(LOOK_SECONDS)
            await self._look(None)
            middle_ms = (self._looked_before_ms + self._looked_ms) // 2
            offsets |= {key: peer.node.now_ms - middle_ms for key, peer in self._peers.items() if peer.is_new}
        return [offsets[key] for key, peer in self._peers.items() if key in offsets and self._lives(peer)]

    async def newest_ms(self) -> int:
        """The newest instant that any node has told, this one's included."""
        await self._look(None)
        return max(self._clock.now_ms(), *(peer.node.now_ms for peer in self._peers.values() if _counts(peer)), 0)

    async def go_on_from(self, newest_ms: int) -> None:
        """Let no node judge by an earlier instant, this one least of all."""
        loaded = msgspec.json.encode(_Node(newest_ms, "loaded"))
        await self._members.write((), [Put(self._layout.node("loaded"), loaded)])
        self._newest_ms = max(self._newest_ms, newest_ms)

    async def pulse(self) -> None:
        """Write this node's instant and compare, now. Raises StoreUnavailableError."""
        async with self._comparing:
            if self._is_fresh(self._clock.now_ms()):
                await self._look("serving")
                self._settle()
            else:
                await self._join()

    async def forget_gone_nodes(self) -> None:
        """Delete what nodes left behind that have been gone for GONE_SECONDS; the newest instant stays for a day."""
        silent_since = asyncio.get_running_loop().time() - GONE_SECONDS
        gone = [(peer.node.now_ms, key) for key, peer in self._peers.items() if peer.seen_at < silent_since]
        newest = max(((at_ms, key) for at_ms, key in gone if _counts(self._peers[key])), default=None)
        for at_ms, key in gone:
            if (at_ms, key) != newest or at_ms + RETENTION_MS < self._clock.now_ms():
                await self._forget(key, self._peers[key].revision)

    async def close(self) -> None:
        """Stop, and leave this node's last instant behind if it served by it."""
        if self._pulse is None:
            return
        self._pulse.cancel()
        await asyncio.wait([self._pulse])
        with contextlib.suppress(StoreUnavailableError):
            await (self._forget(self.node_key) if self._compared_ms is None else self._look("left"))

    def _passed(self) -> int:
        """The clock, which must have passed what this node, and what any record it met, has told."""
        now_ms = self._clock.now_ms()
        if now_ms < self._newest_ms:
            raise clock_behind(now_ms, self._newest_ms)
        if now_ms < self._must_pass_ms:
            raise _behind(self._must_pass_ms + SKEW_MAX_MS, now_ms)
        self._newest_ms = now_ms
        return now_ms

    def _is_fresh(self, now_ms: int) -> bool:
        return self._compared_ms is not None and now_ms - self._compared_ms <= FRESH_MS

    async def _go_on(self) -> None:
        while True:
            # Jitter: if the nodes' pulses kept step, each would always see the others equally old.
            await asyncio.sleep(PULSE_SECONDS * random.uniform(0.7, 1.0))  # noqa: S311
            with contextlib.suppress(StoreUnavailableError):
                await self.pulse()

    async def _compare(self) -> None:
        """Make the comparison fresh, for all who wait for it. Raises StoreUnavailableError."""
        async with self._comparing:
            if self._is_fresh(self._clock.now_ms()):
                return
            if self._fault is not None and asyncio.get_running_loop().time() < self._fault[1] + PULSE_SECONDS:
                raise StoreUnavailableError(self._fault[0].cause_code, self._fault[0].message)
            await self._join()

    async def _join(self) -> None:
        """Watch until the others have told their instants, then serve. Raises StoreUnavailableError."""
        self._compared_ms = None
        try:
            await self._watch()
            await self._look("serving")
            self._refuse_if_ahead()
            self._settle()
        except _SkewError:
            await self._look("joining")
            raise

    async def _watch(self) -> None:
        """Return when every node that serves has told an instant that agrees with mine, or is silent."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + WATCH_SECONDS_MAX
        heard: set[bytes] = set()
        await self._look("joining", is_first=True)
        self._refuse_if_behind()
        while any(self._lives(peer) and key not in heard for key, peer in self._peers.items()):
            if loop.time() > ends_at:
                raise StoreUnavailableError("clocks_unknown", "the nodes' clocks could not be compared in time")
            await asyncio.sleep(LOOK_SECONDS)
            await self._look(None)
            self._refuse_if_behind()
            heard |= self._refuse_if_ahead()

    def _settle(self) -> None:
        """The others agree: fresh from now on. _SkewError if not."""
        self._compared_ms = None
        self._refuse_if_behind()
        self._fault, self._compared_ms = None, self._looked_ms

    async def _look(self, state: _State | None, *, is_first: bool = False) -> None:
        """Write what I am, if I am to, and read what the others are."""
        before_ms = self._clock.now_ms()
        everybody = Read(self._layout.nodes, end_of(self._layout.nodes))
        if state is None:
            answer = await self._members.read(everybody)
        else:
            mine = Put(self.node_key, msgspec.json.encode(_Node(before_ms, state)))
            answer = await self._members.write((), (mine, everybody))
        self._looked_before_ms, self._looked_ms = self._looked_ms, before_ms
        seen_at = asyncio.get_running_loop().time()
        before, self._peers = self._peers, {}
        for key, value, _created, revision in answer.found[-1]:
            known = before.get(key)
            if key == self.node_key:
                continue
            if known is not None and known.revision == revision:
                self._peers[key] = known._replace(is_new=False)
            else:
                self._peers[key] = _Peer(_node(value), revision, seen_at, not is_first)

    def _lives(self, peer: _Peer) -> bool:
        """Whether a node that served may still do so: it wrote, or was first seen, a moment ago."""
        silent_seconds = asyncio.get_running_loop().time() - peer.seen_at
        return peer.node.state == "serving" and silent_seconds <= SILENCE_SECONDS

    def _refuse_if_behind(self) -> None:
        now_ms = self._clock.now_ms()
        newest_ms = max((peer.node.now_ms for peer in self._peers.values() if _counts(peer)), default=0)
        if newest_ms > now_ms + SKEW_MAX_MS:
            raise _behind(newest_ms, now_ms)

    def _refuse_if_ahead(self) -> set[bytes]:
        """The nodes that wrote between the last two looks, all of which agree; _SkewError if one does not.

        Looks that are too far apart prove nothing: what was written in between may be as old as the first.
        """
        if self._clock.now_ms() - self._looked_before_ms > LOOKS_APART_MS_MAX:
            return set()
        new = {key: peer for key, peer in self._peers.items() if peer.is_new and peer.node.state == "serving"}
        for peer in new.values():
            ahead_ms = self._looked_before_ms - peer.node.now_ms
            if ahead_ms > SKEW_MAX_MS:
                error = _SkewError(
                    "clock_skew",
                    f"this node's clock is {ahead_ms / 1_000:.1f} s ahead of another node's: "
                    "set the machines' clocks right; it serves again when they agree",
                )
                self._fault = error, asyncio.get_running_loop().time()
                raise error
        return set(new)

    async def _forget(self, node_key: bytes, revision: int | None = None) -> None:
        guards = () if revision is None else (Guard(node_key, revision),)
        await self._members.write(guards, [Delete(node_key), Delete(self._layout.signal(node_key))])


class _SkewError(StoreUnavailableError):
    """`clock_skew`: the message says which way, and what to do."""


def _node(value: bytes) -> _Node:
    try:
        return msgspec.json.decode(value, type=_Node)
    except msgspec.DecodeError as error:
        raise StoreUnavailableError(
            "store_corrupt", "a node's instant in etcd is not ours: see that nobody else writes under our prefix"
        ) from error


def _counts(peer: _Peer) -> bool:
    """Whether time has passed the instant this node wrote: one that never served may be wrong about it."""
    return peer.node.state != "joining"


def _behind(written_at_ms: int, now_ms: int) -> _SkewError:
    return _SkewError(
        "clock_skew",
        f"this node's clock reads {instant(now_ms)} but another node has written {instant(written_at_ms)}, "
        f"{(written_at_ms - now_ms) / 1_000:.1f} s later: set the machines' clocks right; "
        "it serves again when they agree",
    )
