"""A crowd of workers over HTTP that writes down what it asks and what it is told."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Self
from uuid import NAMESPACE_OID, uuid5

import httpx2
from conformance.history import Event, Operation, Outcome, check

TTL_SECONDS = 5
WORKERS = 16
WORK_SECONDS_MAX = 120
KEYS = [f"busy.{number}" for number in range(6)] + [f"left.{number}" for number in range(10)]
CLOCK_SECONDS = 0.1  # a server that starts again reads the machine's date again, which may have been corrected


class _Route(NamedTuple):
    method: str
    ending: str
    success: int


ROUTES: dict[Operation, _Route] = {
    "acquire": _Route("POST", "/lease", 201),
    "renew": _Route("PATCH", "/lease", 200),
    "release": _Route("DELETE", "/lease", 204),
    "get": _Route("GET", "", 200),
}


def now() -> float:
    """Seconds of this machine's steady clock, the one the server counts by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Crowd:
    """Workers that take, renew and free `busy` locks, and take and abandon `left` ones, until `dismiss`."""

    def __init__(self, url: str, service_key: str, *, timeout_seconds: float = 20) -> None:
        self.history: list[Event] = []
        self.unavailable = 0
        self.cut_off = 0
        """How many connections broke under a request that may have been served."""
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
        """Let the workers go on until they have done enough to be judged by, however long the machine takes."""
        gives_up_at = now() + WORK_SECONDS_MAX
        while not enough():
            self.complain()
            assert now() < gives_up_at, f"{self.counted()}, {self.takeovers()} takeovers"
            await asyncio.sleep(0.05)

    def complain(self) -> None:
        """Raise what a worker met that must not be, if one did: nothing comes from those that have ended."""
        for worker in self._workers:
            if worker.done():
                worker.result()

    def has_had(self, leases: int, takeovers: int = 0) -> bool:
        """Whether so many were granted, so many renewed, and so many locks changed hands that had been abandoned."""
        counted = self.counted()
        least = min(counted["acquire", "granted"], counted["renew", "granted"])
        return least >= leases and self.takeovers() >= takeovers

    async def dismiss(self) -> None:
        """Let each worker finish, then look at every lock once more. Raises what a worker raised."""
        self._over.set()
        await asyncio.gather(*self._workers)
        for key in KEYS:
            assert (await self.call("get", key)).outcome != "unknown"

    def check(self, *, skew_seconds: float = 0) -> None:
        """AssertionError if somebody was told what cannot be, by servers whose clocks differ by so much."""
        found = check(self.history, tolerance_seconds=CLOCK_SECONDS + skew_seconds)
        assert not found, f"{len(found)} violations, first:\n" + "\n".join(map(str, found[:10]))

    def counted(self) -> Counter[tuple[Operation, Outcome]]:
        return Counter((event.operation, event.outcome) for event in self.history)

    def takeovers(self) -> int:
        """How often a lock that its holder had abandoned changed hands."""
        owners = {(one.key, one.owner) for one in self.history if one.outcome == "granted" and "left" in one.key}
        return len(owners) - len({key for key, _ in owners})

    async def call(self, operation: Operation, key: str, owner: str = "") -> Event:
        """One request, written down with its answer, if there is one that says what became of it."""
        event = Event(owner, operation, key, owner, now(), None, "unknown", TTL_SECONDS)
        try:
            answer = await self._sent(operation, key, owner)
            if answer.status_code == 503:
                assert (answer.json()["code"], answer.headers["retry-after"]) == ("lock_unavailable", "1")
                self.unavailable += 1
            else:
                outcome, fencing_token = _told(operation, answer)
                event = replace(event, answered_at=now(), outcome=outcome, fencing_token=fencing_token)
        except httpx2.ConnectError:
            await asyncio.sleep(0.02)
        except httpx2.TransportError:
            self.cut_off += 1
        finally:
            self.history.append(event)
        return event

    async def _sent(self, operation: Operation, key: str, owner: str) -> httpx2.Response:
        route = ROUTES[operation]
        headers = {"X-Volcano-Lock-Token": str(uuid5(NAMESPACE_OID, owner))} if owner else {}
        body = {"ttl_seconds": TTL_SECONDS} if operation in ("acquire", "renew") else None
        return await self._requested(route.method, f"/locks/{key}{route.ending}", headers, body)

    async def _requested(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, int] | None
    ) -> httpx2.Response:
        return await self._client.request(method, path, headers=headers, json=body)

    async def _work(self, name: str) -> None:
        dice = random.Random(name)
        number = 0
        while not self._over.is_set():
            number += 1
            key = dice.choice(KEYS)
            await self._hold(dice, key, f"{name}, token {number}")
            if dice.random() < 0.2:
                await self.call("get", key)

    async def _hold(self, dice: random.Random, key: str, owner: str) -> None:
        taken = await self.call("acquire", key, owner)
        while taken.outcome == "unknown" and dice.random() < 0.8:
            taken = await self.call("acquire", key, owner)
        if taken.outcome == "unknown":
            await self.call("release", key, owner)
        if taken.outcome != "granted":
            return
        for _ in range(dice.randrange(5)):
            if (await self.call("renew", key, owner)).outcome == "lost":
                return
        if "left" not in key:
            while (await self.call("release", key, owner)).outcome == "unknown" and not self._over.is_set():
                await asyncio.sleep(0)


def _told(operation: Operation, answer: httpx2.Response) -> tuple[Outcome, int | None]:
    """What an answer says, and its fencing token. AssertionError for one that no rule allows here."""
    if answer.status_code == 409:
        lost = answer.json()["code"] == "lock_ownership_lost"
        assert lost or (answer.json()["code"], operation) == ("lock_held", "acquire")
        return ("refused" if operation == "release" else "lost") if lost else "held", None
    assert answer.status_code == ROUTES[operation].success, f"{operation}: {answer.status_code} {answer.text}"
    if operation == "release":
        return "done", None
    lease = answer.json()
    if operation == "get":
        return "held" if lease["held"] else "free", lease.get("fencing_token")
    return "granted", lease["fencing_token"]
