"""What a check is, and the scratch lock that it works on."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from volcano_locks import AsyncClient, Client
from volcano_locks.asyncio.waiting import sleep
from volcano_locks.clock import Clock
from volcano_locks.protocol.lease import Lease, LockState

from .http_client import REQUEST_SECONDS_MAX, BrokenPromise, HttpClient, TimedResponse, parse_lease, parse_state

Whose = Literal["public", "ours"]
"""`public`: every service with the public API keeps it. `ours`: this project's addition, which others may lack."""


@dataclass(frozen=True, slots=True)
class ScratchLock:
    """One check's own lock: its key, the TTL of its leases, and the ways to reach the service."""

    http: HttpClient
    key: str
    ttl_seconds: int
    client_options: dict[str, Any]

    @property
    def clock(self) -> Clock:
        """The clock on which the check waits and measures."""
        return self.http.clock

    async def hold(self, token: str | None = None, ttl_seconds: int | None = None) -> Lease:
        """Acquires the lock. BrokenPromise if that is refused."""
        token, ttl_seconds = token or new_token(), ttl_seconds or self.ttl_seconds
        response = await self.http.acquire(self.key, token, ttl_seconds)
        return parse_lease(response, self.key, token, ttl_seconds, 201, to="an acquire of the free lock")

    async def state(self) -> LockState:
        """Reads the state of the lock."""
        return parse_state(await self.http.read(self.key))

    async def expect_free(self, after: str) -> None:
        """BrokenPromise unless a read returns free."""
        if (await self.state()).held:
            raise BrokenPromise(f"the lock is still held after {after}")

    async def expect_held(self, by: Lease, after: str) -> None:
        """BrokenPromise unless a read returns that lease's fencing token."""
        state = await self.state()
        if not state.held or state.fencing_token != by.fencing_token:
            raise BrokenPromise(f"the lock has {'another holder' if state.held else 'no holder'} after {after}")

    async def sleep_until(self, instant: float) -> None:
        """Sleeps until that instant of the clock."""
        remaining = instant - self.clock.now()
        if remaining > 0 and not self.clock.skip_pause(remaining):
            await sleep(self.clock, instant)

    def client(self) -> Client:
        """The blocking client, as a program would use it."""
        return Client(**self.client_options, timeout_seconds=REQUEST_SECONDS_MAX)

    def async_client(self) -> AsyncClient:
        """The asyncio client, as a program would use it."""
        return AsyncClient(**self.client_options, timeout_seconds=REQUEST_SECONDS_MAX)


Run = Callable[[ScratchLock], Awaitable[str]]


class Check(NamedTuple):
    """A promise and how to observe it. `run` returns what it observed, or raises BrokenPromise or Inconclusive.

    `waits`: the check lasts as long as a lease or a renewal interval, so it runs beside the others.
    """

    name: str
    whose: Whose
    rules: tuple[str, ...]
    run: Run
    waits: bool = False


class Checks(list[Check]):
    """The checks of one module, in the order of their definition."""

    def add(self, name: str, whose: Whose, *rules: str, waits: bool = False) -> Callable[[Run], Run]:
        """Adds the decorated function as a check."""

        def added(run: Run) -> Run:
            self.append(Check(name, whose, rules, run, waits))
            return run

        return added


def new_token() -> str:
    """A fresh owner token."""
    return str(uuid.uuid4())


def expect_lost(response: TimedResponse, to: str) -> None:
    """BrokenPromise unless the response is 409 lock_ownership_lost."""
    response.expect(409, "lock_ownership_lost", to=to)
