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
from conformance.history.checker import Event, Operation, Outcome, Slack, check

TTL_SECONDS = 5
WORKERS = 16
WORK_SECONDS_MAX = 120
HANG_UP_SECONDS_MAX = 0.5
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
    """Workers that take, renew and free `busy` locks, and take and abandon `left` ones, until `dismiss`.

    Some wait for the lock, and some of those hang up. `arrival_seconds` and `notice_seconds`: see `Slack`.
    """

    arrival_seconds = 2.0
    notice_seconds = 3.0
    wait_seconds = 8.0

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
        """AssertionError if somebody was told what cannot be, by servers whose clocks differ by so much; or if nobody
        waited for a lock and got it.
        """
        assert any(event.wait_seconds and event.outcome == "granted" for event in self.history), "nobody waited"
        slack = Slack(
            tolerance_seconds=CLOCK_SECONDS + skew_seconds,
            arrival_seconds=self.arrival_seconds,
            notice_seconds=self.notice_seconds,
        )
        found = check(self.history, slack)
        assert not found, f"{len(found)} violations, first:\n" + "\n".join(map(str, found[:10]))

    def counted(self) -> Counter[tuple[Operation, Outcome]]:
        return Counter((event.operation, event.outcome) for event in self.history)

    def takeovers(self) -> int:
        """How often a lock that its holder had abandoned changed hands."""
        owners = {(one.key, one.owner) for one in self.history if one.outcome == "granted" and "left" in one.key}
        return len(owners) - len({key for key, _ in owners})

    async def call(self, operation: Operation, key: str, owner: str = "", wait_seconds: float = 0.0) -> Event:
        """One request, written down with its answer, if there is one that says what became of it. Cancelling it is
        hanging up.
        """
        node = self._node()
        event = Event(
            owner, operation, key, owner, now(), None, "unknown", TTL_SECONDS, wait_seconds=wait_seconds, node=node
        )
        try:
            answer = await self._sent(node, event)
            if answer.status_code == 503:
                assert (answer.json()["code"], answer.headers["retry-after"]) == ("lock_service_unavailable", "1")
                self.unavailable += 1
            else:
                outcome, fencing_token = _told(operation, answer)
                event = replace(event, answered_at=now(), outcome=outcome, fencing_token=fencing_token)
        except asyncio.CancelledError:
            event = replace(event, answered_at=now(), outcome="left")
            raise
        except httpx2.ConnectError:
            await asyncio.sleep(0.02)
        except httpx2.TransportError:
            self.cut_off += 1
        finally:
            self.history.append(event)
        return event

    def _node(self) -> str:
        """Which node is asked next, for a crowd that has several."""
        return ""

    async def _sent(self, node: str, event: Event) -> httpx2.Response:
        route = ROUTES[event.operation]
        headers = {"X-Volcano-Lock-Token": str(uuid5(NAMESPACE_OID, event.owner))} if event.owner else {}
        body: dict[str, float] | None = (
            {"ttl_seconds": TTL_SECONDS} if event.operation in ("acquire", "renew") else None
        )
        if body is not None and event.wait_seconds:
            body["wait_seconds"] = event.wait_seconds
        path = f"{node}/locks/{event.key}{route.ending}"
        return await self._requested(route.method, path, headers, body)

    async def _requested(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, float] | None
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
        wants_to_wait = dice.random() < (0.02 if "left" in key else 0.4)
        if wants_to_wait and dice.random() < 0.1:
            await self._hang_up(dice.random() * HANG_UP_SECONDS_MAX, key, owner)
            return
        wait_seconds = self.wait_seconds if wants_to_wait else 0.0
        taken = await self.call("acquire", key, owner, wait_seconds)
        while taken.outcome == "unknown" and dice.random() < 0.8:
            taken = await self.call("acquire", key, owner, wait_seconds)
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

    async def _hang_up(self, seconds: float, key: str, owner: str) -> None:
        """Wait for a lock, lose patience, and go away without it."""
        try:
            async with asyncio.timeout(seconds):
                await self.call("acquire", key, owner, self.wait_seconds)
        except TimeoutError:
            return
        await self.call("release", key, owner)


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
