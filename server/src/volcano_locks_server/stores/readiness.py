"""The probe behind readiness: a write that takes the path of an acquire (OPS-10).

A cheaper question, such as `SELECT 1` or a write to another table, succeeds in cases in which every acquire fails: the
table is locked, its disk is full, or its rows cannot be written. The probe's record belongs to no project, so no list,
count, copy or backup shows it. Purging deletes it a day after its node is gone.
"""

from typing import Final
from uuid import uuid4

from ..ports.lock_store import LockStore, RecordKey, Records, StepResult
from ..rules.lease import Free
from ..rules.values import LockKey

PROBE_PROJECT: Final = "readiness"  # ids of projects are UUIDs


PROBE_KEY: Final = RecordKey(PROBE_PROJECT, LockKey("probe"))


def node_probe_key() -> RecordKey:
    """A key for one of several nodes, so that they do not wait for each other's probes."""
    return RecordKey(PROBE_PROJECT, LockKey(uuid4().hex))


async def write_probe(locks: LockStore, key: RecordKey) -> None:
    """Change the record and make the change durable, or raise StoreUnavailableError."""

    def step(records: Records, now_ms: int) -> StepResult:
        before = records[key]
        return StepResult({key: Free(before.fencing_token + 1 if isinstance(before, Free) else 1, now_ms)}, ())

    await locks.update([key], step)
