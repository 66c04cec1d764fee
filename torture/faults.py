"""What every deployment consists of, and the faults of its nodes, its clients and the network between them."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from testsupport.fault_proxy import FaultProxy
from testsupport.server_process import ServerExitedError, ServerProcess

from .history import History
from .worker_process import TTL_SECONDS, WorkerProcess, now

Fault = Callable[[], AsyncIterator[float]]
"""Lets a fault happen. Yields once, when the service can recover, with the time from which its recovery counts; then
undoes what is left of the fault."""
PAUSE_SECONDS = (1, TTL_SECONDS + 4)  # the longest is longer than a lease with its grace
CALM_SECONDS = 12
START_SECONDS_MAX = 60


@dataclass
class Deployment:
    """The nodes of one engine, and the proxy that balances the workers' connections over them."""

    engine: str
    nodes: Sequence[ServerProcess]
    front: FaultProxy
    faults: dict[str, Fault] = field(default_factory=dict)
    date_steps: list[float] = field(default_factory=list)
    """When a clock was set."""


def kind(name: str) -> Callable[[Callable[[Any], AsyncIterator[float]]], Callable[[Any], AsyncIterator[float]]]:
    """Makes a method a fault of that kind."""

    def mark(method: Callable[[Any], AsyncIterator[float]]) -> Callable[[Any], AsyncIterator[float]]:
        method.kind = name  # type: ignore[attr-defined]
        return method

    return mark


class Faults:
    """A group of faults: the methods with a `kind`."""

    def by_kind(self) -> dict[str, Fault]:
        """All of them."""
        methods = (getattr(self, name) for name in dir(self))
        return {method.kind: method for method in methods if hasattr(method, "kind")}


class CommonFaults(Faults):
    """The faults that do not depend on the engine."""

    def __init__(
        self, deployment: Deployment, workers: Sequence[WorkerProcess], history: History, service_key: str, seed: object
    ) -> None:
        self._nodes = deployment.nodes
        self._front = deployment.front
        self._workers = workers
        self._history = history
        self._service_key = service_key
        self._random = random.Random(f"common {seed}")

    @kind("node: kill -9")
    async def _node_killed(self) -> AsyncIterator[float]:
        node = self._random.choice(self._nodes)
        node.kill()
        await asyncio.sleep(self._random.uniform(0, 2))
        began_at = now()
        await start(node)
        yield began_at

    @kind("all nodes: kill -9")
    async def _all_nodes_killed(self) -> AsyncIterator[float]:
        for node in self._nodes:
            node.kill()
        await asyncio.sleep(self._random.uniform(0, 2))
        began_at = now()
        await start_all(self._nodes)
        yield began_at

    @kind("node: paused")
    async def _node_paused(self) -> AsyncIterator[float]:
        with stopped(self._random.choice(self._nodes).pid):
            await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))
        yield now()

    @kind("client: kill -9")
    async def _client_killed(self) -> AsyncIterator[float]:
        worker = self._random.choice(self._workers)
        await asyncio.to_thread(worker.kill)
        worker.start(f"http://127.0.0.1:{self._front.port}", self._service_key)
        yield now()

    @kind("client: paused")
    async def _client_paused(self) -> AsyncIterator[float]:
        workers = self._random.sample(self._workers, 2)
        began_at = now()
        for worker in workers:
            worker.send(signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))
        for worker in workers:
            worker.send(signal.SIGCONT)
            worker.paused.append((began_at, now()))
        yield now()

    @kind("client network: cut")
    async def _front_cut(self) -> AsyncIterator[float]:
        for _ in range(self._random.randint(1, 6)):
            self._front.cut()
            await asyncio.sleep(self._random.uniform(0, 0.5))
        yield now()

    @kind("client network: silent")
    async def _front_silent(self) -> AsyncIterator[float]:
        self._front.hold_all()
        await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))
        self._front.forward_all()
        yield now()

    @kind("client network: lost responses")
    async def _front_loses_responses(self) -> AsyncIterator[float]:
        self._front.responses.clear()
        await asyncio.sleep(self._random.uniform(1, 3))
        self._front.cut()
        self._front.responses.set()
        yield now()

    @kind("client network: late")
    async def _front_late(self) -> AsyncIterator[float]:
        self._front.delay_seconds_max = self._random.uniform(0.2, 2)
        await asyncio.sleep(self._random.uniform(3, 6))
        self._front.delay_seconds_max = 0
        yield now()

    @kind("client network: duplicates")
    async def _front_duplicates(self) -> AsyncIterator[float]:
        self._front.duplicated_after_seconds_max = self._random.uniform(0.1, TTL_SECONDS + 2)
        await asyncio.sleep(self._random.uniform(3, 6))
        self._front.duplicated_after_seconds_max = 0
        yield now()

    @kind("none")
    async def _calm(self) -> AsyncIterator[float]:
        await asyncio.sleep(CALM_SECONDS)
        yield now()


class NetworkFaults(Faults):
    """The faults of the networks between nodes and engine. `networks` are the proxies of each node."""

    def __init__(self, networks: Sequence[Sequence[FaultProxy]], seed: object) -> None:
        self._networks = networks
        self._random = random.Random(f"network {seed}")

    @kind("network: node cut off")
    async def _node_cut_off(self) -> AsyncIterator[float]:
        network = self._random.choice(self._networks)
        for proxy in network:
            proxy.hold_all()
        await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))
        for proxy in network:
            if self._random.random() < 0.5:
                proxy.cut()
            proxy.forward_all()
        yield now()

    @kind("network: late")
    async def _late(self) -> AsyncIterator[float]:
        delay_seconds = self._random.uniform(0.05, 0.5)
        for proxy in chain(*self._networks):
            proxy.delay_seconds_max = delay_seconds
        await asyncio.sleep(self._random.uniform(3, 6))
        for proxy in chain(*self._networks):
            proxy.delay_seconds_max = 0.0
        yield now()


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes with SIGSTOP, and let them continue afterwards."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def start(node: ServerProcess) -> None:
    """Start a node and return when it listens. If it exits, start it again, as a supervisor does."""
    ends_at = now() + START_SECONDS_MAX
    while True:
        try:
            return await asyncio.to_thread(node.start)
        except ServerExitedError:
            if now() > ends_at:
                raise
            await asyncio.sleep(0.5)


async def start_all(nodes: Sequence[ServerProcess]) -> None:
    """Start nodes at once, and return when all listen."""
    await asyncio.gather(*map(start, nodes))
