"""Load over HTTP: workers that use locks and record every request and response for the checker of histories."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Self
from uuid import NAMESPACE_OID, uuid5

import httpx2
from conformance.history.checker import OperationName, OutcomeName, RequestRecord, Tolerances, check
from msgspec.structs import replace

TTL_SECONDS = 5
WORKERS = 16
WORK_SECONDS_MAX = 120
DISCONNECT_SECONDS_MAX = 0.5
PAUSE_SECONDS_MAX = 0.2  # of a worker between two leases: faults need requests under way, not a full processor
KEYS = [f"busy.{number}" for number in range(6)] + [f"abandoned.{number}" for number in range(10)]
CLOCK_SECONDS = 0.1  # a restarted server reads the machine's date again, which may have been corrected


class _Route(NamedTuple):
    method: str
    ending: str
    success: int


ROUTES: dict[OperationName, _Route] = {
    "acquire": _Route("POST", "/lease", 201),
    "renew": _Route("PATCH", "/lease", 200),
    "release": _Route("DELETE", "/lease", 204),
    "get": _Route("GET", "", 200),
}


def now() -> float:
    """Seconds of the machine's boot-time clock, which the server uses too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_on_sending: ContextVar[Callable[[], None] | None] = ContextVar("_on_sending", default=None)
"""Runs when the request is sent. A client disconnects no earlier: anyio forgets, and never closes, a connection whose
task is cancelled in the moment in which it is established."""


async def _trace(step: str, _details: object) -> None:
    if step == "http11.send_request_headers.started" and (then := _on_sending.get()) is not None:
        then()


class LoadClients:
    """Workers that acquire, renew and release `busy` locks, and acquire and abandon `abandoned` ones, until `finish`.

    Some wait for the lock, and some of those disconnect. `arrival_seconds` and `disconnect_seconds`: see `Tolerances`.
    """

    arrival_seconds = 2.0
    disconnect_seconds = 3.0
    wait_seconds = 8.0

    def __init__(self, url: str, service_key: str, *, timeout_seconds: float = 20) -> None:
        self.history: list[RequestRecord] = []
        self.unavailable = 0
        self.broken_connections = 0
        """Connections that broke during a request that may have been served."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"Authorization": f"Bearer {service_key}"}
        self._client = httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=timeout_seconds)
        self._over = asyncio.Event()
        self._workers = [asyncio.create_task(self._work(f"worker {number}")) for number in range(WORKERS)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.wait(self._workers)
        await self._client.aclose()

    async def work_until(self, enough: Callable[[], bool]) -> None:
        """Let the workers run until `enough`, for as long as a slow machine needs."""
        deadline = now() + WORK_SECONDS_MAX
        while not enough():
            self.raise_failures()
            assert now() < deadline, f"{self.counts()}, {self.takeovers()} takeovers"
            await asyncio.sleep(0.05)

    def raise_failures(self) -> None:
        """Raise the error of a worker that has failed."""
        for worker in self._workers:
            if worker.done():
                worker.result()

    def has_completed(self, leases: int, takeovers: int = 0) -> bool:
        """Whether there were that many grants and renewals, and that many takeovers of abandoned locks."""
        counts = self.counts()
        least = min(counts["acquire", "granted"], counts["renew", "granted"])
        return least >= leases and self.takeovers() >= takeovers

    async def finish(self) -> None:
        """Let each worker finish, then read every lock. Raises the error of a failed worker."""
        self._over.set()
        await asyncio.gather(*self._workers)
        for key in KEYS:
            assert (await self.call("get", key)).outcome != "unknown"

    def check(self, *, skew_seconds: float = 0) -> None:
        """Check the history, for servers whose clocks differ by up to `skew_seconds`.

        Raises AssertionError for a violation, or if no waiter was granted a lock.
        """
        assert any(record.wait_seconds and record.outcome == "granted" for record in self.history), (
            "no waiter was granted a lock"
        )
        tolerances = Tolerances(
            tolerance_seconds=CLOCK_SECONDS + skew_seconds,
            arrival_seconds=self.arrival_seconds,
            disconnect_seconds=self.disconnect_seconds,
        )
        found = check(self.history, tolerances)
        assert not found, f"{len(found)} violations, first:\n" + "\n".join(map(str, found[:10]))

    def counts(self) -> Counter[tuple[OperationName, OutcomeName]]:
        return Counter((record.operation, record.outcome) for record in self.history)

    def takeovers(self) -> int:
        """How many abandoned locks were taken over."""
        owners = {(one.key, one.owner) for one in self.history if one.outcome == "granted" and "abandoned" in one.key}
        return len(owners) - len({key for key, _ in owners})

    async def call(
        self, operation: OperationName, key: str, owner: str = "", wait_seconds: float = 0.0
    ) -> RequestRecord:
        """Send one request and record it with its outcome. Cancelling the call disconnects."""
        node = self._node()
        record = RequestRecord(
            owner, operation, key, owner, now(), None, "unknown", TTL_SECONDS, wait_seconds=wait_seconds, node=node
        )
        try:
            response = await self._send(node, record)
            if response.status_code == 503:
                assert (response.json()["code"], response.headers["retry-after"]) == ("lock_service_unavailable", "1")
                self.unavailable += 1
            else:
                outcome, fencing_token = _outcome_of(operation, response)
                record = replace(record, responded_at=now(), outcome=outcome, fencing_token=fencing_token)
        except asyncio.CancelledError:
            record = replace(record, responded_at=now(), outcome="disconnected")
            raise
        except httpx2.ConnectError:
            await asyncio.sleep(0.02)
        except httpx2.TransportError:
            self.broken_connections += 1
        finally:
            self.history.append(record)
        return record

    def _node(self) -> str:
        """The node of the next request, for several nodes."""
        return ""

    async def _send(self, node: str, record: RequestRecord) -> httpx2.Response:
        route = ROUTES[record.operation]
        headers = {"X-Volcano-Lock-Token": str(uuid5(NAMESPACE_OID, record.owner))} if record.owner else {}
        body: dict[str, float] | None = (
            {"ttl_seconds": TTL_SECONDS} if record.operation in ("acquire", "renew") else None
        )
        if body is not None and record.wait_seconds:
            body["wait_seconds"] = record.wait_seconds
        path = f"{node}/locks/{record.key}{route.ending}"
        return await self._request(route.method, path, headers, body)

    async def _request(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, float] | None
    ) -> httpx2.Response:
        return await self._client.request(method, path, headers=headers, json=body, extensions={"trace": _trace})

    async def _work(self, name: str) -> None:
        random_source = random.Random(name)
        number = 0
        while not self._over.is_set():
            number += 1
            key = random_source.choice(KEYS)
            await self._hold(random_source, key, f"{name}, token {number}")
            if random_source.random() < 0.2:
                await self.call("get", key)
            await asyncio.sleep(random_source.random() * PAUSE_SECONDS_MAX)

    async def _hold(self, random_source: random.Random, key: str, owner: str) -> None:
        wants_to_wait = random_source.random() < (0.02 if "abandoned" in key else 0.4)
        if wants_to_wait and random_source.random() < 0.1:
            await self._wait_and_disconnect(random_source.random() * DISCONNECT_SECONDS_MAX, key, owner)
            return
        wait_seconds = self.wait_seconds if wants_to_wait else 0.0
        acquired = await self.call("acquire", key, owner, wait_seconds)
        while acquired.outcome == "unknown" and random_source.random() < 0.8:
            acquired = await self.call("acquire", key, owner, wait_seconds)
        if acquired.outcome == "unknown":
            await self.call("release", key, owner)
        if acquired.outcome != "granted":
            return
        for _ in range(random_source.randrange(5)):
            if (await self.call("renew", key, owner)).outcome == "lost":
                return
        if "abandoned" not in key:
            while (await self.call("release", key, owner)).outcome == "unknown" and not self._over.is_set():
                await asyncio.sleep(0)

    async def _wait_and_disconnect(self, seconds: float, key: str, owner: str) -> None:
        """Wait for a lock and disconnect before it is granted."""
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        before = _on_sending.set(lambda: limit.reschedule(loop.time() + seconds))
        try:
            async with limit:
                await self.call("acquire", key, owner, self.wait_seconds)
        except TimeoutError:
            return
        finally:
            _on_sending.reset(before)
        await self.call("release", key, owner)


def _outcome_of(operation: OperationName, response: httpx2.Response) -> tuple[OutcomeName, int | None]:
    """The outcome and the fencing token of a response. AssertionError for one that no rule allows."""
    if response.status_code == 409:
        lost = response.json()["code"] == "lock_ownership_lost"
        assert lost or (response.json()["code"], operation) == ("lock_held", "acquire")
        return ("refused" if operation == "release" else "lost") if lost else "held", None
    assert response.status_code == ROUTES[operation].success, f"{operation}: {response.status_code} {response.text}"
    if operation == "release":
        return "done", None
    lease = response.json()
    if operation == "get":
        return "held" if lease["held"] else "free", lease.get("fencing_token")
    return "granted", lease["fencing_token"]
