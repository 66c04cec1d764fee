"""A lock service over a memory store whose commits a test can hold and fail, so that each race is staged on purpose."""

import asyncio

from testsupport.server_ports import FaultyStore
from testsupport.service_requests import Reply, perform

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.lease import (
    Acquire,
    ForceRelease,
    Free,
    Granted,
    Held,
    Outcome,
    Read,
    Refused,
    Release,
    Renew,
)
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

KEY = LockKey("daily-rollup")
LOCK = RecordKey("p", KEY)
Result = Outcome | LockError


class GatedStore(FaultyStore):
    """A memory store whose updates wait at a gate after they are written, and fail on demand."""

    def __init__(self, clock: ManualClock) -> None:
        self.memory = MemoryStore(clock)
        super().__init__(self.memory, gate_at="after")

    @property
    def holder(self) -> int | None:
        """The number of the owner that holds the lock."""
        record = self.memory.records.get(LOCK)
        return record.owner_digest[0] if isinstance(record, Held) else None


class Harness:
    """A service over that store, and its requests for one lock. Owners are numbers."""

    def __init__(self, clock: ManualClock, **options: object) -> None:
        self.clock = clock
        self.store = GatedStore(clock)
        self.service = LockService(self.store, clock, **options)  # type: ignore[arg-type]
        self.waiting: list[asyncio.Task[Reply]] = []

    async def perform(self, command: Acquire | Renew | Release | ForceRelease | Read, wait_ms: int = 0) -> Result:
        return (await perform(self.service, "p", 0, KEY, command, wait_ms=wait_ms)).outcome

    async def acquire(self, owner: int, ttl_seconds: int = 30) -> Result:
        return await self.perform(Acquire(digest(owner), ttl_seconds))

    async def release(self, owner: int) -> Result:
        return await self.perform(Release(digest(owner)))

    async def wait(self, owner: int, wait_ms: int = 20_000, ttl_seconds: int = 30) -> "asyncio.Task[Result]":
        task = asyncio.create_task(self.perform(Acquire(digest(owner), ttl_seconds), wait_ms))
        await settled()
        return task

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        await settled()

    @property
    def count(self) -> int:
        return self.service.queues.count(LOCK)


def digest(owner: int) -> bytes:
    return bytes([owner]) * 32


async def settled() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


async def soon(task: "asyncio.Task[Result]") -> Result:
    """The result of a request that waits no more."""
    await settled()
    assert task.done(), "it still waits"
    return task.result()


def granted(result: Result) -> bool:
    return isinstance(result, Granted)


def code(result: Result) -> str:
    assert isinstance(result, Refused | LockError), result
    return result.code


def free_elsewhere(harness: Harness) -> None:
    """Another node released the lock."""
    record = harness.store.memory.records[LOCK]
    harness.store.memory.records[LOCK] = Free(record.fencing_token, harness.clock.now_ms())
