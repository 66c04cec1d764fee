"""A waiter starves if other nodes get the lock again and again while its own node could take a turn."""

from dataclasses import dataclass
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, Final

from simulation.checks.checker import BACK_SECONDS, Checker
from simulation.plan import plan_of
from simulation.stores.observed import Update
from simulation.world import World

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue.waiter import Waiter
from volcano_locks_server.rules.lease import Acquire, Held
from volcano_locks_server.rules.values import LockKey

KEY: Final = RecordKey("project", LockKey("lock-1"))
TTL_MS: Final = 5_000


@dataclass(eq=False)
class _Node:
    """Hashed by identity, as a node is."""

    name: str
    process: Any
    is_paused: bool = False


def _node(name: str) -> Any:
    loop, clock = SimpleNamespace(paused_until=0.0), SimpleNamespace(now_ms=lambda: 0)
    return _Node(name, SimpleNamespace(loop=loop, clock=clock, is_serving=True, started_at=0.0))


def _pending() -> Any:
    return SimpleNamespace(done=lambda: False)


class _TwoNodes:
    """A waiter at node-2, from 0 s on, and grants of node-1."""

    def __init__(self) -> None:
        self.world: Final = World("1")
        self.checker: Final = Checker(self.world, {b"key": ("project", 0)}, plan=plan_of(1, 100, store="etcd"))
        self.nodes: Final = [_node(name) for name in ("node-1", "node-2")]
        self._token = 0
        self._last: Held | None = None
        self.checker.arrived(self.nodes[1], self._acquire(b"waiter"))
        acquire = Acquire(sha256(b"waiter").digest(), 5, "waiter")
        self.checker.joined(self.nodes[1], KEY, Waiter(KEY, acquire, result=_pending()))

    def grants_of_node_1(self, until: float) -> None:
        """Four a second."""
        while self.world.now < until:
            self.world.now += 0.25
            self._token += 1
            token = b"%d" % self._token
            self.checker.arrived(self.nodes[0], self._acquire(token))
            update, now_ms = Update("node-1"), round(self.world.now * 1_000)
            lease = Held(sha256(token).digest(), now_ms, now_ms + TTL_MS, now_ms + TTL_MS, now_ms, now_ms, 5, "other")
            update.before, update.changed, update.now_ms = {KEY: self._last}, {KEY: lease}, now_ms
            self._last = lease
            self.checker.committed(update)

    @staticmethod
    def _acquire(token: bytes) -> Any:
        fields = {b"authorization": b"key", b"x-volcano-lock-token": token}
        return SimpleNamespace(method="POST", target=f"/locks/{KEY.key}/lease", fields=fields)


def test_a_waiter_that_others_overtake_for_long_starves() -> None:
    nodes = _TwoNodes()
    nodes.grants_of_node_1(until=25.0)
    assert nodes.world.violation is not None
    assert nodes.world.violation.kind == "starved"


def test_a_node_that_is_cut_off_from_its_store_takes_no_turn() -> None:
    nodes = _TwoNodes()
    nodes.grants_of_node_1(until=10.0)
    nodes.checker.store_is_cut("node-2", 3.0)
    nodes.grants_of_node_1(until=25.0)
    assert nodes.world.violation is None
    nodes.grants_of_node_1(until=13.0 + BACK_SECONDS + 25.0)
    assert nodes.world.violation is not None
    assert nodes.world.violation.kind == "starved"
