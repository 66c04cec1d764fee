"""Reads and writes the instants of the nodes, which each node keeps in a key of its own.

A sample reads the instants of all peers. Given a state, it writes this node's instant in the same transaction.
"""

import asyncio
from typing import Final, Literal, NamedTuple
from uuid import uuid4

import msgspec

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from .endpoints import Endpoints
from .layout import Layout, end_of
from .transactions import Compare, Delete, Get, Put

SAMPLE_SECONDS: Final = 0.1
SILENCE_SECONDS: Final = 3.5

State = Literal["joining", "serving", "left", "loaded"]


class NodeInstant(msgspec.Struct):
    """What a node writes about itself."""

    now_ms: int
    state: State

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
    """The peers as of the last sample, and the instants of this node's clock at the last two samples."""

    def __init__(self, clock: Clock, endpoints: Endpoints, layout: Layout) -> None:
        self._clock: Final = clock
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self.own_key: Final = layout.node(uuid4().hex)
        self.peers: dict[bytes, PeerClock] = {}
        self.sampled_ms = self.previous_sampled_ms = 0

    async def sample(self, state: State | None, *, is_first: bool = False) -> None:
        """Write this node's `state` if given, and read the peers'."""
        before_ms = self._clock.now_ms()
        all_nodes = Get(self._layout.nodes, end_of(self._layout.nodes))
        if state is None:
            result = await self._endpoints.read(all_nodes)
        else:
            own = Put(self.own_key, msgspec.json.encode(NodeInstant(before_ms, state)))
            result = await self._endpoints.write((), (own, all_nodes))
        self.previous_sampled_ms, self.sampled_ms = self.sampled_ms, before_ms
        seen_at = asyncio.get_running_loop().time()
        before, self.peers = self.peers, {}
        for key, value, _created, revision in result.reads[-1]:
            known = before.get(key)
            if key == self.own_key:
                continue
            if known is not None and known.revision == revision:
                self.peers[key] = known._replace(is_new=False)
            else:
                self.peers[key] = PeerClock(_decode_instant(value), revision, seen_at, not is_first)

    def newest_used_ms(self) -> int:
        """The newest instant that a peer has used for a decision, 0 if none has."""
        return max((peer.node.now_ms for peer in self.peers.values() if peer.node.was_used), default=0)

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

    async def write_loaded(self, newest_ms: int) -> None:
        """Store the newest instant of a loaded snapshot, as that of a node that is gone."""
        loaded = msgspec.json.encode(NodeInstant(newest_ms, "loaded"))
        await self._endpoints.write((), [Put(self._layout.node("loaded"), loaded)])

    async def delete(self, node_key: bytes, revision: int | None = None) -> None:
        """Delete a node's keys, if its instant is still at `revision`."""
        compares = () if revision is None else (Compare(node_key, revision),)
        await self._endpoints.write(compares, [Delete(node_key), Delete(self._layout.signal(node_key))])


def _decode_instant(value: bytes) -> NodeInstant:
    try:
        return msgspec.json.decode(value, type=NodeInstant)
    except msgspec.DecodeError as error:
        raise StoreUnavailableError(
            "store_corrupt",
            "a node's instant in etcd has another format: no other program may write under the store's prefix",
        ) from error
