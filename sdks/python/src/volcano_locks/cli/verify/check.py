"""One check: its name, whose promise it is, the rules it stands for, and the room it works in."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from volcano_locks import AsyncClient, Client
from volcano_locks.clock import Clock
from volcano_locks.protocol.lease import Lease, LockState

from .http_client import REQUEST_SECONDS_MAX, Answer, Broken, Wire, lease_of, state_of

Whose = Literal["public", "ours"]
"""`public`: any service with the public API keeps it. `ours`: this project's addition, which others need not have."""


@dataclass(frozen=True, slots=True)
class Room:
    """What one check works with: the wire, a lock of its own, how long its leases are."""

    wire: Wire
    key: str
    ttl_seconds: int
    client_options: dict[str, Any]

    @property
    def clock(self) -> Clock:
        """The clock on which the check waits and measures."""
        return self.wire.clock

    async def hold(self, token: str | None = None, ttl_seconds: int | None = None) -> Lease:
        """A lease of the lock; Broken where it is refused."""
        token, ttl_seconds = token or new_token(), ttl_seconds or self.ttl_seconds
        answer = await self.wire.acquire(self.key, token, ttl_seconds)
        return lease_of(answer, self.key, token, ttl_seconds, 201, to="an acquire of the free lock")

    async def state(self) -> LockState:
        """What a read of the lock says."""
        return state_of(await self.wire.read(self.key))

    async def expect_free(self, after: str) -> None:
        """Broken unless a read says that the lock is free."""
        if (await self.state()).held:
            raise Broken(f"the lock is still held after {after}")

    async def expect_held(self, by: Lease, after: str) -> None:
        """Broken unless a read shows that lease's fencing token."""
        state = await self.state()
        if not state.held or state.fencing_token != by.fencing_token:
            raise Broken(f"the lock has {'another holder' if state.held else 'no holder'} after {after}")

    async def rest_until(self, instant: float) -> None:
        """Rest until that instant on the clock."""
        left = instant - self.clock.now()
        if left > 0:
            await self.clock.pause(left)

    def client(self) -> Client:
        """The threaded client, as a program would use it."""
        return Client(**self.client_options, timeout_seconds=REQUEST_SECONDS_MAX)

    def async_client(self) -> AsyncClient:
        """The asyncio client, as a program would use it."""
        return AsyncClient(**self.client_options, timeout_seconds=REQUEST_SECONDS_MAX)


class Check(NamedTuple):
    """A promise and how to see it. `run` returns what it saw, or raises Broken or Unjudged.

    `waits`: it lives through a lease or a renewal, so it runs beside the others.
    """

    name: str
    whose: Whose
    rules: tuple[str, ...]
    run: Callable[[Room], Awaitable[str]]
    waits: bool = False


def new_token() -> str:
    """A fresh owner token."""
    return str(uuid.uuid4())


def refused_as_lost(answer: Answer, to: str) -> None:
    """Broken unless that was answered 409 lock_ownership_lost."""
    answer.expect(409, "lock_ownership_lost", to=to)
