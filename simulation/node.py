"""One node: a server process that runs the product's service and request handling over a model store.

A node starts, serves, is paused, killed or stopped, and is started again after a while, as under a supervisor. Requests
take both ways of the product: the short one (`LeaseRequests`) and the one through ASGI (`App`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, Protocol

from volcano_locks_server.events import Subscriber
from volcano_locks_server.http.app import App
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.ports.clock import Clock
from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.ports.registry import Registry
from volcano_locks_server.queue.waiter import Waiter
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.memory_admin_tokens import MemoryAdminTokens
from volcano_locks_server.stores.memory_audit import MemoryAudit
from volcano_locks_server.telemetry import Log, Metrics

from .clocks import Machine, ProcessClock
from .loop import ProcessLoop, bury
from .server_request import ServerRequest
from .stores.observed import ObservedStore
from .world import World

PURGE_EVERY_SECONDS: Final = 60.0
PURGE_MAX: Final = 1_000
RESTART_SECONDS: Final = 0.3
DRAIN_SECONDS_MAX: Final = 5.0


class Engine(Protocol):
    """A model engine."""

    async def open(self, node: str, clock: Clock, loop: ProcessLoop) -> OpenStore: ...


class Observer(Protocol):
    """What the checks learn of a node."""

    def joined(self, node: "Node", key: RecordKey, waiter: Waiter) -> None: ...
    def arrived(self, node: "Node", request: ServerRequest) -> None: ...
    def disconnected(self, node: "Node", request: ServerRequest) -> None: ...
    def responded(self, node: "Node", request: ServerRequest, response: bytes) -> None: ...
    def process_ended(self, node: "Node") -> None: ...
    def failed(self, node: "Node", context: dict[str, Any]) -> None: ...


class _SilentLog:
    """In place of `Log`, which writes from a thread. A bug that the product logs is kept for the checks."""

    debug_enabled = grants_enabled = False

    def __init__(self, on_bug: Callable[[dict[str, Any]], None]) -> None:
        self._on_bug: Final = on_bug

    def info(self, _name: str, **_fields: object) -> None: ...

    debug = grant = warning = info

    def within_rate(self, _project_id: str | None = None) -> bool:
        return False

    def unexpected_error(self, name: str, error: BaseException, /, **_fields: object) -> None:
        self._on_bug({"message": name, "exception": error})


class Node:
    """`name` is that of the node over all its processes; `run` counts them."""

    def __init__(
        self, world: World, name: str, machine: Machine, *, engine: Engine, registry: Registry, observer: Observer
    ) -> None:
        self.name: Final = name
        self.machine: Final = machine
        self.world: Final = world
        self.run = 0
        self.process: Process | None = None
        self.observer: Final = observer
        self.engine: Final = engine
        self.registry: Final = registry
        self.random: Final[Random] = world.random_for(f"turns of {name}")
        self._ended: Final[list[Process]] = []  # kept, so that no finalizer runs at a time that the seed does not fix

    def start(self) -> None:
        """Start a process if none runs."""
        if self.process is None:
            self.run += 1
            self.process = Process(self)
            self.world.note(self.name, "starts")

    def kill(self, why: str, *, restarts_after: float | None = RESTART_SECONDS) -> None:
        """End the process at once; connections to it break."""
        process, self.process = self.process, None
        if process is None:
            return
        self.world.note(self.name, why)
        process.loop.kill()
        self._ended.append(process)
        for request in list(process.requests):
            request.connection_lost()
        self.observer.process_ended(self)
        if restarts_after is not None:
            self.world.after(restarts_after, self.start)

    def bury(self) -> None:
        """Free what its processes have left, after the run."""
        self.kill("ends with the run", restarts_after=None)
        bury([process.loop for process in self._ended])

    def pause(self, seconds: float) -> None:
        if self.process is not None:
            self.world.note(self.name, f"is paused for {seconds:.1f} s")
            self.process.loop.paused_until = max(self.process.loop.paused_until, self.world.now + seconds)

    def stop(self) -> None:
        """Let the process complete its requests and end, as at SIGTERM."""
        if self.process is not None and self.process.is_serving:
            self.world.note(self.name, "is asked to stop")
            self.process.loop.call_soon(self.process.stop)

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.world.now < self.process.loop.paused_until


class Process:
    """One process of a node."""

    def __init__(self, node: Node) -> None:
        self.node: Final = node
        self.loop: Final = ProcessLoop(
            node.world, node.machine, node.random, lambda context: node.observer.failed(node, context)
        )
        self.started_at: Final = node.world.now
        self.clock: Final = ProcessClock(node.machine)
        self.service: LockService | None = None
        self.app: App | None = None
        self.requests: Final[dict[ServerRequest, None]] = {}
        self._tasks: Final[dict[asyncio.Task[Any], None]] = {}
        self.spawn(self._serve)

    @property
    def is_serving(self) -> bool:
        return self.app is not None

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run that coroutine in a task of this process."""

        def start() -> None:
            task = self.loop.create_task(work())
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

        self.loop.call_soon(start)

    def accept(self, request: ServerRequest) -> None:
        """A complete request arrived."""
        if self.app is None or self.loop.is_killed:
            request.connection_lost()
            return
        self.requests[request] = None
        self.node.observer.arrived(self.node, request)
        request.serve(self.app, self)

    def stop(self) -> None:
        self.spawn(self._stop)

    async def _serve(self) -> None:
        node, clock = self.node, self.clock
        try:
            store = await node.engine.open(node.name, clock, self.loop)
        except StoreUnavailableError as error:
            node.kill(f"does not start: {error.cause_code}", restarts_after=1.0)
            return
        locks = ObservedStore(store.locks, node.name)
        self.service = service = LockService(
            locks,
            clock,
            quotas=store.quotas,
            batches_in_flight=store.batches_in_flight,
            batch_max=store.batch_max,
            several_nodes=store.quotas is not None,
            signals=store.signals,
        )
        join = service.queues.join

        def observed_join(key: RecordKey, acquire: Acquire, wait_ms: int) -> Waiter:
            waiter = join(key, acquire, wait_ms)
            node.observer.joined(node, key, waiter)
            return waiter

        service.queues.join = observed_join  # type: ignore[method-assign]
        service.hub.start()
        audit = MemoryAudit()
        admin_tokens = MemoryAdminTokens(audit)
        log: Any = _SilentLog(lambda context: node.observer.failed(node, context))
        self.app = App(
            service=service,
            store=locks,
            registry=node.registry,
            admin_tokens=admin_tokens,
            audit=audit,
            authenticator=Authenticator(node.registry, clock, "admin-token-of-the-simulation", admin_tokens),
            clock=clock,
            log=_as_log(log),
            metrics=Metrics(log_lines_dropped=lambda: 0),
        )
        node.world.note(node.name, "serves")
        while True:
            await asyncio.sleep(PURGE_EVERY_SECONDS)
            try:
                await store.locks.purge(limit=PURGE_MAX)
            except LockError as error:
                node.world.note(node.name, f"cannot purge: {error.code}")

    async def _stop(self) -> None:
        app, service = self.app, self.service
        assert app is not None
        assert service is not None
        await app.drain(DRAIN_SECONDS_MAX)
        await service.close()
        self.node.kill("has stopped")

    async def subscribe(self, subscriber: Subscriber, after: str | None) -> None:
        """Subscribe, or end the subscriber if this process cannot."""
        assert self.service is not None
        try:
            await self.service.hub.subscribe(subscriber, after=after)
        except LockError:
            subscriber.end()


def _as_log(log: Any) -> Log:
    return log  # type: ignore[no-any-return]  # it has what the HTTP layer uses of a Log
