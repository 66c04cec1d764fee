"""Helpers for tests that read and write a store."""

import asyncio
import hashlib
from collections.abc import Sequence

from volcano_locks_server.ports.lock_store import LockStore, RecordKey, Records, StepResult
from volcano_locks_server.queue.handoff import PendingCommand, evaluate
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.history import with_last_hold
from volcano_locks_server.rules.lease import Command, Free, Held, LockRecord, Outcome
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import OpenStore

PROJECT = "6f1c2a34-0000-4000-8000-000000000001"


def key(name: str, project_id: str = PROJECT) -> RecordKey:
    return RecordKey(project_id, LockKey(name))


def digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def held(name: str, at_ms: int, *, ttl_seconds: int = 30, holder: str | None = None) -> Held:
    expires_at_ms = at_ms + ttl_seconds * 1000
    return Held(digest(name), at_ms, expires_at_ms, at_ms + 7_776_000_000, at_ms, at_ms, ttl_seconds, holder)


async def write_records(locks: LockStore, *records: tuple[RecordKey, LockRecord]) -> None:
    """Write these records, whatever was there."""
    await locks.update([one for one, _ in records], lambda _found, _now_ms: StepResult(dict(records), ()))


async def read_records(locks: LockStore, *keys: RecordKey) -> Sequence[LockRecord | None]:
    """The records of `keys`, without a change."""
    return await locks.update(  # type: ignore[return-value]
        keys, lambda records, _now_ms: StepResult({}, [records[one] for one in keys])
    )


async def run_commands(locks: LockStore, *commands: tuple[RecordKey, Command]) -> Sequence[Outcome]:
    """Run several commands as one batch, by the rules of `lease`."""

    def step(records: Records, now_ms: int) -> StepResult:
        current = dict(records)
        outcomes = []
        displaced = []
        for one, command in commands:
            before = current[one]
            after, outcome = evaluate(before, PendingCommand(command), now_ms)
            outcomes.append(outcome)
            if after is not before and isinstance(after, Held | Free):
                after, entry = with_last_hold(before, after, command, now_ms)
                displaced += [] if entry is None else [(one, entry)]
            current[one] = after
        changed: dict[RecordKey, LockRecord] = {}
        for one, record in current.items():
            if record is not records[one] and isinstance(record, Held | Free):
                changed[one] = record
        return StepResult(changed, outcomes, displaced)

    keys = list(dict.fromkeys(one for one, _ in commands))
    return await locks.update(keys, step)  # type: ignore[return-value]


async def increment(locks: LockStore, one: RecordKey) -> int:
    """Read the lock's number and raise it by one; returns the new number."""

    def step(records: Records, now_ms: int) -> StepResult:
        before = records[one]
        after = Free((before.fencing_token if before else 0) + 1, now_ms, ())
        return StepResult({one: after}, [after.fencing_token])

    return (await locks.update([one], step))[0]  # type: ignore[return-value]


async def increment_at_last(locks: LockStore, one: RecordKey) -> int:
    """`increment`, repeated while other writers conflict: such an update had no effect."""
    while True:
        try:
            return await increment(locks, one)
        except StoreUnavailableError as error:
            if error.cause_code != "conflict":
                raise


async def until_ready(store: OpenStore, within_seconds: float = 30) -> None:
    """Return when the store can be used again."""
    async with asyncio.timeout(within_seconds):
        while True:
            try:
                return await store.locks.ready()
            except StoreUnavailableError:
                await asyncio.sleep(0.05)
