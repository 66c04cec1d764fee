"""Short words for what the tests of stores do."""

import asyncio
import hashlib
from collections.abc import Sequence

from volcano_locks_server.ports.lock_store import LockStore, RecordKey, Records, Stepped
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Command, Free, Held, LockRecord, Outcome, decide
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


async def put(locks: LockStore, *records: tuple[RecordKey, LockRecord]) -> None:
    """Write these records, whatever was there."""
    await locks.update([one for one, _ in records], lambda _found, _now_ms: Stepped(dict(records), ()))


async def found(locks: LockStore, *keys: RecordKey) -> Sequence[LockRecord | None]:
    """The records of `keys`, written by nobody."""
    return await locks.update(  # type: ignore[return-value]
        keys, lambda records, _now_ms: Stepped({}, [records[one] for one in keys])
    )


async def act(locks: LockStore, *commands: tuple[RecordKey, Command]) -> Sequence[Outcome]:
    """The lease's own rule, several commands as one batch."""

    def step(records: Records, now_ms: int) -> Stepped:
        kept = dict(records)
        outcomes = []
        for one, command in commands:
            decision = decide(kept[one], command, now_ms)
            kept[one] = decision.record
            outcomes.append(decision.outcome)
        changed = {one: record for one, record in kept.items() if record is not None and record is not records[one]}
        return Stepped(changed, outcomes)

    keys = list(dict.fromkeys(one for one, _ in commands))
    return await locks.update(keys, step)  # type: ignore[return-value]


async def counted(locks: LockStore, one: RecordKey) -> int:
    """Raise the lock's number by one, reading it first; the new number."""

    def step(records: Records, now_ms: int) -> Stepped:
        before = records[one]
        after = Free((before.fencing_token if before else 0) + 1, now_ms, ())
        return Stepped({one: after}, [after.fencing_token])

    return (await locks.update([one], step))[0]  # type: ignore[return-value]


async def serves_soon(store: OpenStore, within_seconds: float = 30) -> None:
    """Return when the store can be used again."""
    async with asyncio.timeout(within_seconds):
        while True:
            try:
                return await store.locks.ready()
            except StoreUnavailableError:
                await asyncio.sleep(0.05)
