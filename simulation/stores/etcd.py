"""A model of an etcd cluster, under the product's own etcd store.

What is modelled: keys with revisions, transactions that compare revisions and take effect at one instant, responses
that are lost although the transaction took effect, an election during which nothing is proposed, and nodes that are cut
off. Reads are linearizable; only a `stale` read may show an earlier state.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any, Final, cast

from volcano_locks_server.ports.clock import Clock
from volcano_locks_server.ports.lock_store import StoreCounts
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.etcd.clock_skew import ClockSkewMonitor
from volcano_locks_server.stores.etcd.endpoints import (
    CALL_SECONDS_MAX,
    PAUSE_SECONDS,
    TXN_SECONDS_MAX,
    ConnectionChangedError,
)
from volcano_locks_server.stores.etcd.faults import LATE, UNREACHABLE
from volcano_locks_server.stores.etcd.history import EtcdHistory
from volcano_locks_server.stores.etcd.layout import Layout
from volcano_locks_server.stores.etcd.locks import BATCH_MAX, EtcdStore
from volcano_locks_server.stores.etcd.quotas import EtcdQuotas
from volcano_locks_server.stores.etcd.transactions import Compare, Delete, Get, KeyValue, Op, Put, TransactionResult

from ..loop import ProcessLoop
from ..world import World
from .observed import OnCommit, Update, current_update
from .signals import ModelSignals, SignalChannel
from .wire import StoreWire

_LAYOUT: Final = Layout("/model")


class ModelCluster:
    """The cluster. `has_no_leader_until`: an election ends then."""

    def __init__(self, world: World, wire: StoreWire, channel: SignalChannel, on_commit: OnCommit) -> None:
        self.has_no_leader_until = 0.0
        self.world: Final = world
        self.wire: Final = wire
        self.channel: Final = channel
        self._on_commit: Final = on_commit
        self._keys: Final[list[bytes]] = []
        self._values: Final[dict[bytes, KeyValue]] = {}
        self._revision = 1

    async def open(self, node: str, clock: Clock, loop: ProcessLoop) -> OpenStore:
        """Open the store in a new process. Raises StoreUnavailableError as the product does."""
        endpoints = cast("Any", ModelEndpoints(self, node, loop))
        monitor = ClockSkewMonitor(clock, endpoints, _LAYOUT, cast("Any", _NoGuard()))
        locks = EtcdStore(monitor, endpoints, _LAYOUT, cast("Any", _NoRegistry()), EtcdHistory(endpoints, _LAYOUT))
        monitor.last_free_from_ms = locks.last_free_from_ms
        await monitor.start()
        return OpenStore(
            locks,
            cast("Any", None),
            cast("Any", None),
            cast("Any", None),
            cast("Any", None),
            quotas=EtcdQuotas(endpoints, _LAYOUT),
            batches_in_flight=2,
            batch_max=BATCH_MAX,
            signals=ModelSignals(self.channel, node, loop),
            close=monitor.close,
        )

    def apply(
        self, compares: Iterable[Compare], then: Iterable[Op], otherwise: Iterable[Op], update: Update | None
    ) -> TransactionResult:
        """Run the transaction at this instant."""
        succeeded = all(self._mod_revision(compare.key) == compare.mod_revision for compare in compares)
        ops = list(then if succeeded else otherwise)
        if any(isinstance(op, Put | Delete) for op in ops):
            self._revision += 1
        reads: list[list[KeyValue]] = []
        writes_lock = False
        for op in ops:
            match op:
                case Get():
                    reads.append(self._read(op))
                    continue
                case Put():
                    self._put(op.key, op.value)
                    writes_lock = writes_lock or op.key.startswith(_LAYOUT.locks)
                case Delete():
                    for key in self._range(op.key, op.end):
                        del self._values[key]
                        self._keys.remove(key)
            reads.append([])
        if writes_lock and update is not None:
            self._on_commit(update)
        return TransactionResult(succeeded, reads, self._revision)

    def _mod_revision(self, key: bytes) -> int:
        found = self._values.get(key)
        return 0 if found is None else found.mod_revision

    def _put(self, key: bytes, value: bytes) -> None:
        known = self._values.get(key)
        if known is None:
            insort(self._keys, key)
        created = self._revision if known is None else known.create_revision
        self._values[key] = KeyValue(key, value, created, self._revision)

    def _read(self, get: Get) -> list[KeyValue]:
        found = [self._values[key] for key in self._range(get.key, get.end)]
        return found[: get.limit] if get.limit else found

    def _range(self, key: bytes, end: bytes) -> list[bytes]:
        if not end:
            return [key] if key in self._values else []
        return self._keys[bisect_left(self._keys, key) : bisect_left(self._keys, end)]


class _NoGuard:
    """The schema stays as it is."""

    def check(self, _found: KeyValue | None) -> None: ...


class _NoRegistry:
    """The registry is not in the model cluster."""

    async def finish_deletions(self) -> None: ...


class ModelEndpoints:
    """One node's connection to the cluster, in place of `etcd.endpoints.Endpoints`."""

    def __init__(self, cluster: ModelCluster, node: str, loop: ProcessLoop) -> None:
        self.refusal: StoreUnavailableError | None = None
        self.counts: Final = StoreCounts()
        self.connection_changes = 0
        self._cluster: Final = cluster
        self._node: Final = node
        self._loop: Final = loop

    async def read(self, *ops: Get) -> TransactionResult:
        return await self.write((), ops)

    async def write(
        self,
        compares: Iterable[Compare],
        then: Iterable[Op],
        otherwise: Iterable[Get] = (),
        *,
        if_unchanged_since: int | None = None,
    ) -> TransactionResult:
        """As `Endpoints.write`: a write is sent once, and raises if its response is missing."""
        request = list(compares), list(then), list(otherwise), current_update()
        is_repeatable = not any(isinstance(op, Put | Delete) for op in request[1])
        deadline = self._loop.time() + TXN_SECONDS_MAX
        while True:
            if if_unchanged_since not in (None, self.connection_changes):
                raise ConnectionChangedError
            outcome = await self._send(request)
            if isinstance(outcome, TransactionResult):
                return outcome
            self.connection_changes += 1
            if (outcome == "late" and not is_repeatable) or self._loop.time() + PAUSE_SECONDS >= deadline:
                raise StoreUnavailableError(*LATE)
            if outcome == "cut":
                raise StoreUnavailableError("etcd_unreachable", UNREACHABLE)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send(self, request: tuple[Any, ...]) -> TransactionResult | str:
        """The result, or why there is none: `cut` and `no leader` have no effect, after `late` it is unknown."""
        wire, world = self._cluster.wire, self._cluster.world
        result: asyncio.Future[TransactionResult | str] = self._loop.create_future()
        if wire.is_cut(self._node):
            world.after(1.0, self._reply, result, "cut")
        else:
            world.after(wire.delay(), self._arrive, request, result)
        timer = self._loop.call_later(CALL_SECONDS_MAX, _settle, result, "late")
        try:
            return await result
        finally:
            timer.cancel()

    def _arrive(self, request: tuple[Any, ...], result: "asyncio.Future[Any]") -> None:
        cluster, wire = self._cluster, self._cluster.wire
        if cluster.world.now < cluster.has_no_leader_until:
            cluster.world.after(wire.delay(), self._reply, result, "no leader")
            return
        outcome = cluster.apply(*request)
        if not wire.is_cut(self._node) and not wire.loses_reply():
            cluster.world.after(wire.delay(), self._reply, result, outcome)

    def _reply(self, result: "asyncio.Future[Any]", outcome: object) -> None:
        self._loop.call_soon(_settle, result, outcome)


def _settle(result: "asyncio.Future[Any]", outcome: object) -> None:
    if not result.done():
        result.set_result(outcome)
