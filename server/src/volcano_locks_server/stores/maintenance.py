"""Maintains a store without serving from it: migrates its schema, checks its health, repairs damaged records, and sets
its clock back.

Like `open_store`, this module maps a URL to a store; the modules `health` and `reset` of the store's own package do the
work.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ..ports.audit_entry import Act, entry_of
from ..ports.clock import Clock, SystemClock
from ..ports.lock_store import LOCK_KIND, LockStore, RecordKey, Records, StepResult, lock_name
from ..rules.errors import DamagedRecordError
from ..rules.lease import Damaged, Free
from ..rules.values import LockKey
from . import POSTGRES, driver_needed, open_store, sqlite_path
from .clock_reset import ClockReset
from .errors import CLOCK_RECORD
from .health_findings import HealthFinding


class MigrationResult(NamedTuple):
    """The schema's version before the migration (0 if there was none) and after it."""

    before: int
    after: int


async def migrate(url: str, clock: Clock | None = None) -> MigrationResult:
    """Migrate the store's schema to this release's version; creates the store if it does not exist.

    Raises ValueError if `url` names no durable store, and StoreUnavailableError, whose message says what to do.
    """
    with _module("health", url, "so it has no schema") as (health, where):
        return MigrationResult(*await health.migrate(where, clock or SystemClock()))


async def check_health(url: str, clock: Clock | None = None) -> Sequence[HealthFinding]:
    """All findings about the store, in the order of the checks. Changes no record and no schema.

    A check that an earlier failure makes impossible is left out. Raises ValueError if `url` names no durable store.
    """
    with _module("health", url, "so there is nothing to check") as (health, where):
        findings: Sequence[HealthFinding] = await health.check_health(where, clock or SystemClock())
        return findings


async def find_damaged(url: str, record: str) -> DamagedRecordError | None:
    """The damaged record of that name; None if there is none. Raises ValueError and StoreUnavailableError."""
    if record == CLOCK_RECORD:
        with _module("clock_repair", url, "so it has no clock to repair") as (module, where):
            error: DamagedRecordError | None = await module.find_clock_damage(where, SystemClock())
            return error
    store = await open_store(url, SystemClock())
    try:
        if store.snapshot is not None:
            async for error in store.snapshot.damaged():
                if error.record == record:
                    return error
    finally:
        await store.close()
    return None


async def repair(url: str, record: str, *, by: Act | None = None) -> None:
    """Repair that damaged record (CLI-31). The audit names the act. Raises ValueError and StoreUnavailableError."""
    entry = None if by is None else entry_of(by, "record_repaired", ("record", None, record))
    if record == CLOCK_RECORD:
        with _module("clock_repair", url, "so it has no clock to repair") as (module, where):
            await module.repair_clock(where, SystemClock(), entry)
            return
    store = await open_store(url, SystemClock())
    try:
        kind, _, name = record.partition("/")
        if kind == LOCK_KIND:
            project_id, _, key = name.partition("/")
            await _free_lock(store.locks, RecordKey(project_id, LockKey(key)), by)
        elif store.repairs is not None:
            await store.repairs.repair(record, SystemClock().now_ms())
            if entry is not None:
                await store.audit.append(entry)
    finally:
        await store.close()


async def _free_lock(locks: LockStore, key: RecordKey, by: Act | None) -> None:
    """Free a lock whose record is damaged. Its next fencing token is above the clock, as after a purge (LEASE-3)."""

    def step(records: Records, now_ms: int) -> StepResult:
        if not isinstance(records[key], Damaged):
            return StepResult({}, ())
        target = ("record", None, lock_name(key))
        project_id = key.project_id
        audit = [] if by is None else [entry_of(by, "record_repaired", target, project_id=project_id, at_ms=now_ms)]
        return StepResult({key: Free(now_ms, now_ms)}, (), audit=audit)

    await locks.update([key], step)


async def plan_reset(url: str, clock: Clock | None = None) -> ClockReset:
    """What `reset_clock` would do (LEASE-19). Raises ValueError if `url` names no durable store, and
    StoreUnavailableError if the store is in use or cannot be used.
    """
    with _module("reset", url, "so its clock needs no reset") as (reset, where):
        plan: ClockReset = await reset.plan_reset(where, clock or SystemClock())
        return plan


async def reset_clock(url: str, shown: ClockReset, clock: Clock | None = None) -> None:
    """Set the clock back, as `plan_reset` has shown. Raises as it does."""
    with _module("reset", url, "so its clock needs no reset") as (reset, where):
        await reset.reset_clock(where, clock or SystemClock(), shown)


@contextmanager
def _module(name: str, url: str, if_memory: str) -> Iterator[tuple[ModuleType, Path | str]]:
    """The module of that name in the package of the store, and its file or URL.

    ValueError for a URL of no store, and for memory://.
    """
    path, scheme = sqlite_path(url), url.partition("://")[0]
    if scheme == "memory":
        raise ValueError(f"store memory:// keeps nothing, {if_memory}: name serve's store")
    with driver_needed(url):  # only the store in use is loaded
        yield import_module(f".{'postgres' if scheme in POSTGRES else scheme}.{name}", __package__), path or url
