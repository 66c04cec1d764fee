"""One run against one engine: deploys it, lets workers use it, and lets one fault happen after the other."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import httpx2
from testsupport.server_process import ServerProcess

from . import on_etcd, on_postgres, on_sqlite
from .faults import CommonFaults, Deployment, Fault
from .fenced_storage import FencedStorage
from .history import FaultInterval, History
from .worker_process import COMMANDS, TTL_SECONDS, WorkerProcess, now

ENGINES = {"sqlite": on_sqlite.deployed, "postgres": on_postgres.deployed, "etcd": on_etcd.deployed}
PROCESSES_PER_LANGUAGE = 2
WARM_UP_SECONDS = 3
REST_SECONDS = (0.5, 2)
RECOVERY_SECONDS_MAX = 60
PROBE_SECONDS = 5
LASTING_TTL_SECONDS = 7_776_000  # the longest, so that no step of a clock ends it
LASTING_EVERY_SECONDS = 0.3
SAMPLE = 15  # of lasting leases are read after each fault, and as many of the newest

Progress = Callable[[str], None]


class Run:
    """The state of one run, for its report."""

    def __init__(self, engine: str, seed: object, progress: Progress) -> None:
        self.engine = engine
        self.seed = seed
        self.seconds = 0.0
        self.history: History
        self.fence: FencedStorage
        self.lasting: dict[str, int] = {}
        """The fencing tokens of leases that no fault may end."""
        self._progress = progress
        self._random = random.Random(f"{engine} {seed}")
        self._deployment: Deployment
        self._workers: list[WorkerProcess]
        self._service_key = ""
        self._headers: dict[str, str] = {}

    @property
    def violations(self) -> list[str]:
        """All violations of the run."""
        return [violation for fault in self.history.faults for violation in fault.violations]

    async def last(self, seconds: float) -> None:
        """Run for this long, and until the last fault is over."""
        with tempfile.TemporaryDirectory(prefix="torture-") as name:
            folder = Path(name)
            folder.chmod(0o755)  # the engines run as other users
            async with AsyncExitStack() as stack:
                self.fence = await stack.enter_async_context(FencedStorage())
                self._deployment = await stack.enter_async_context(ENGINES[self.engine](folder, self.seed))
                self._service_key = await asyncio.to_thread(self._deployment.nodes[0].new_service_key)
                self._headers = {"Authorization": f"Bearer {self._service_key}"}
                began_at = now()
                self._workers = [
                    WorkerProcess(language, f"{language}-{number}", folder, fence=self.fence.url, began_at=began_at)
                    for language in COMMANDS
                    for number in range(PROCESSES_PER_LANGUAGE)
                ]
                self.history = History(self._workers, began_at)
                self.history.date_steps = self._deployment.date_steps
                common = CommonFaults(self._deployment, self._workers, self.history, self._service_key, self.seed)
                faults = self._deployment.faults | common.by_kind()
                for worker in self._workers:
                    stack.callback(worker.kill)
                    self._start(worker)
                await asyncio.sleep(WARM_UP_SECONDS)
                while now() < began_at + seconds:
                    names = sorted(faults)
                    self._random.shuffle(names)
                    for fault in names:
                        await self._let_happen(fault, faults)
                        if now() > began_at + seconds:
                            break
                await self._finish()
                self.seconds = now() - began_at

    def _start(self, worker: WorkerProcess) -> None:
        worker.start(f"http://127.0.0.1:{self._deployment.front.port}", self._service_key)

    async def _let_happen(self, kind: str, faults: Mapping[str, Fault]) -> None:
        """Let one fault happen, acquire lasting leases meanwhile, and wait until every node grants leases again."""
        fault = FaultInterval(kind, now())
        self.history.faults.append(fault)
        acquiring = asyncio.create_task(self._acquire_lasting_leases())
        happening = faults[kind]()
        since = await anext(happening)
        await self._wait_until_all_grant(since)
        fault.recovery_seconds = now() - since
        async for _ in happening:
            raise AssertionError(f"{kind} yields twice")
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        await self._wait_until_all_grant(now())
        fault.ended_at = now()
        await self._verify_lasting_leases()
        for node in self._deployment.nodes:
            node.output()  # discard it
        await asyncio.sleep(self._random.uniform(*REST_SECONDS))
        for worker in self._workers:
            if failure := worker.failure():
                self.history.violation(failure)
                self._start(worker)
        await asyncio.to_thread(self.history.read)
        await asyncio.to_thread(self.history.check)
        self._progress(
            f"{self.engine:8} {fault.kind:32} recovered in {fault.recovery_seconds:5.1f} s, "
            f"{self.history.operations.total():7,} operations, {len(self.violations)} violations"
        )

    async def _finish(self) -> None:
        for failure in await asyncio.gather(*(asyncio.to_thread(worker.end) for worker in self._workers)):
            if failure:
                self.history.violation(failure)
        await asyncio.to_thread(self.history.read)
        await asyncio.to_thread(lambda: self.history.check(all_epochs=True))
        for violation in self.fence.violations:
            self.history.violation(violation)

    async def _acquire_lasting_leases(self) -> None:
        """Acquire leases that no fault may end, through the proxy of the workers, until cancelled."""
        while True:
            key = f"lasting.{len(self.lasting)}.{uuid4()}"
            lease = await self._acquire(f"http://127.0.0.1:{self._deployment.front.port}", key, LASTING_TTL_SECONDS)
            if lease is not None:
                self.lasting[key] = lease
            await asyncio.sleep(LASTING_EVERY_SECONDS)

    async def _verify_lasting_leases(self) -> None:
        """No acknowledged lease may be lost: each node must know those of the run, or a sample of many."""
        keys = self._random.sample(sorted(self.lasting), min(SAMPLE, len(self.lasting)))
        async with httpx2.AsyncClient(headers=self._headers, timeout=PROBE_SECONDS) as client:
            for number, key in enumerate([*keys, *list(self.lasting)[-SAMPLE:]]):
                node = self._deployment.nodes[number % len(self._deployment.nodes)]
                try:
                    response = await client.get(f"{node.url}/locks/{key}")
                except httpx2.TransportError:
                    continue
                if response.status_code == 200 and response.json().get("fencing_token") != self.lasting[key]:
                    self.history.violation(f"lost: {key} under token {self.lasting[key]}, now {response.json()}")

    async def _wait_until_all_grant(self, since: float) -> None:
        await asyncio.gather(*(self._wait_until_it_grants(node, since) for node in self._deployment.nodes))

    async def _wait_until_it_grants(self, node: ServerProcess, since: float) -> None:
        while await self._acquire(node.url, f"probe.{uuid4()}", TTL_SECONDS) is None:
            if now() > since + RECOVERY_SECONDS_MAX:
                self.history.violation(f"not recovered: no grant within {RECOVERY_SECONDS_MAX} s by {node.url}")
                return
            await asyncio.sleep(0.05)

    async def _acquire(self, url: str, key: str, ttl_seconds: int) -> int | None:
        """The fencing token of a new lease, or None if the request failed."""
        headers = self._headers | {"X-Volcano-Lock-Token": str(uuid4())}
        try:
            async with httpx2.AsyncClient(headers=headers, timeout=PROBE_SECONDS) as client:
                response = await client.post(f"{url}/locks/{key}/lease", json={"ttl_seconds": ttl_seconds})
        except httpx2.TransportError:
            return None
        if response.status_code == 201:
            return int(response.json()["fencing_token"])
        if response.status_code != 503:
            self.history.violation(f"unexpected response {response.status_code} to an acquire: {response.text}")
        return None
