"""One simulated deployment: machines, engine, nodes, network and checks, as a plan wants them."""

from hashlib import sha256
from typing import Any, Final

from volcano_locks_server.ports.registry import Project, ServiceKey
from volcano_locks_server.stores.memory import MemoryRegistry, MemoryStore

from .checks.checker import Checker
from .clocks import Machine, ProcessClock
from .network import Network
from .node import Engine, Node
from .plan import Plan
from .stores.etcd import ModelCluster
from .stores.postgres import ModelDatabase
from .stores.signals import SignalChannel
from .stores.sqlite import ModelFile
from .stores.wire import StoreWire
from .world import World

PROJECTS: Final = ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002")


class Deployment:
    def __init__(self, plan: Plan, world: World) -> None:
        self.plan: Final = plan
        self.world: Final = world
        draw = world.random_for("clocks")
        self.machines: Final = [self._machine(f"machine-{number + 1}", draw) for number in range(plan.nodes)]
        quotas = (0, plan.quota)
        self.credentials: Final = [b"Bearer sk-" + bytes([97 + number]) * 24 for number in range(len(PROJECTS))]
        project_of = {
            credential: (project_id, quota)
            for credential, project_id, quota in zip(self.credentials, PROJECTS, quotas, strict=True)
        }
        self.checker: Final = Checker(world, project_of, plan=plan)
        self.wire: Final = StoreWire(world, world.random_for("store's network"))
        self.network: Final = Network(world, world.random_for("network"))
        self.channel: Final = SignalChannel(world, self.wire, world.random_for("messages"), is_pooled=plan.is_pooled)
        self.file: ModelFile | None = None
        self.database: ModelDatabase | None = None
        self.cluster: ModelCluster | None = None
        engine = self._engine()
        registry = self._registry(quotas)
        self.nodes: Final = [
            Node(world, f"node-{number + 1}", machine, engine=engine, registry=registry, observer=self.checker)
            for number, machine in enumerate(self.machines)
        ]

    def _machine(self, name: str, draw: Any) -> Machine:
        """Machines run at slightly different rates, and their clocks differ by less than SKEW_MAX_MS.

        Time synchronisation corrects rates, so that even after hours a clock is a fraction of a second off at most.
        """
        rate, date_rate = 1 + draw.uniform(-0.000_01, 0.000_01), 1.0
        if not self.plan.clocks_are_bounded:
            rate = date_rate = 1 + draw.uniform(-0.05, 0.05)
        return Machine(self.world, name, rate=rate, date_rate=date_rate, date_error=draw.uniform(-0.1, 0.1))

    def _engine(self) -> Engine:
        on_commit = self.checker.committed
        if self.plan.store == "sqlite":
            self.file = ModelFile(self.world, self.world.random_for("disk"), on_commit)
            return self.file
        if self.plan.store == "postgres":
            machine = Machine(self.world, "database-1")
            self.database = ModelDatabase(self.world, self.wire, self.channel, machine, on_commit)
            return self.database
        self.cluster = ModelCluster(self.world, self.wire, self.channel, on_commit)
        return self.cluster

    def _registry(self, quotas: tuple[int, ...]) -> MemoryRegistry:
        registry = MemoryRegistry(MemoryStore(ProcessClock(self.machines[0])))
        for number, (project_id, quota) in enumerate(zip(PROJECTS, quotas, strict=True)):
            _run(registry.add_project(Project(project_id, f"project-{number + 1}", quota, 0)))
            key_id = project_id[:-1] + str(7 + number)
            service_key = ServiceKey(key_id, project_id, "key", "sk-", ("*",), 0)
            _run(registry.add_service_key(service_key, _digest(self.credentials[number])))
        return registry


def _digest(credential: bytes) -> bytes:

    return sha256(credential[7:]).digest()


def _run(work: Any) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("the memory registry never waits")
