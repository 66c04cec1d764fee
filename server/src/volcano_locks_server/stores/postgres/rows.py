"""Lock records as rows: many in a statement, as one array for each column."""

from collections.abc import Mapping, Sequence
from typing import Final

from ...ports.lock_store import RecordKey
from ...rules.lease import Free, Held, LockRecord
from ...rules.values import LockKey
from ..lock_rows import free_record, record_cells
from .connections import Row, Transaction

_TYPES: Final = {
    "project_id": "text",
    "key": "text",
    "fencing_token": "bigint",
    "owner_digest": "bytea",
    "expires_at_ms": "bigint",
    "deadline_ms": "bigint",
    "acquired_at_ms": "bigint",
    "renewed_at_ms": "bigint",
    "ttl_seconds": "bigint",
    "holder": "text",
    "freed_at_ms": "bigint",
    "retired_digests": "bytea",
}
COLUMNS: Final = ", ".join(_TYPES)
_KEPT: Final = ", ".join(list(_TYPES)[2:])
_NOWHERE: Final = ", ".join(f"NULL::{kind}" for kind in _TYPES.values())
_CLOCK: Final = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

NOW: Final = f"SELECT {_CLOCK}, now_ms FROM volcano_locks.newest_instant"

# The last row holds the clock, which is read after the rows before it are locked (case 27).
LOCK: Final = f"""
    SELECT {COLUMNS}, NULL::bigint, NULL::bigint FROM (
        SELECT lock.* FROM unnest($1::text[], $2::text[]) AS asked (project_id, key)
        JOIN volcano_locks.lock ON lock.project_id = asked.project_id AND lock.key = asked.key
        ORDER BY lock.project_id, lock.key FOR UPDATE OF lock
    ) AS locked
    UNION ALL SELECT {_NOWHERE}, {_CLOCK}, now_ms FROM volcano_locks.newest_instant"""

# A missing row is locked by inserting it; the second transaction to do so inserts nothing. Rows are inserted in key
# order, so that two transactions with the same rows cannot deadlock.
WRITE: Final = f"""
    WITH given AS (
        SELECT * FROM unnest({", ".join(f"${index}::{kind}[]" for index, kind in enumerate(_TYPES.values(), 1))},
            $13::boolean[]) AS given ({COLUMNS}, is_new)
    ), updated AS (
        UPDATE volcano_locks.lock SET ({_KEPT}) = ({", ".join(f"given.{column}" for column in list(_TYPES)[2:])})
        FROM given WHERE NOT is_new AND lock.project_id = given.project_id AND lock.key = given.key RETURNING 1
    ), inserted AS (
        INSERT INTO volcano_locks.lock ({COLUMNS}) SELECT {COLUMNS} FROM given WHERE is_new ORDER BY project_id, key
        ON CONFLICT DO NOTHING RETURNING 1
    ), marked AS (
        UPDATE volcano_locks.newest_instant SET now_ms = $14 WHERE one = (
            SELECT one FROM volcano_locks.newest_instant WHERE now_ms + 1000 <= $14 FOR UPDATE SKIP LOCKED)
    )
    SELECT (SELECT count(*) FROM updated) + (SELECT count(*) FROM inserted)"""

PAGE: Final = f"""
    SELECT {COLUMNS} FROM volcano_locks.lock
    WHERE (project_id, key) > ($1, $2) AND EXISTS (SELECT FROM volcano_locks.project WHERE project.id = project_id)
    ORDER BY project_id, key LIMIT $3"""


async def read_page(transaction: Transaction, after: RecordKey, limit: int) -> dict[RecordKey, LockRecord]:
    """Up to `limit` records after `after` in key order, without those of deleted projects."""
    rows = await transaction.fetch(PAGE, *after, limit)
    return {RecordKey(row[0], LockKey(row[1])): _record(row) for row in rows}


def keyed_record(row: Row) -> tuple[LockKey, LockRecord]:
    """The key and the record in a row of COLUMNS."""
    return LockKey(row[1]), _record(row)


async def lock_records(
    transaction: Transaction, keys: Sequence[RecordKey]
) -> tuple[dict[RecordKey, LockRecord | None], int, int]:
    """Lock the records of `keys` and return them (None if missing), then the database's clock, read after that, and the
    newest instant stored in the database.
    """
    records: dict[RecordKey, LockRecord | None] = dict.fromkeys(keys)
    rows = await transaction.fetch(LOCK, [key.project_id for key in keys], [key.key for key in keys])
    *found, last = rows
    for row in found:
        records[row[0], row[1]] = _record(row)  # type: ignore[index]  # equal to its RecordKey, which stays the key
    return records, last[12], last[13]


async def write_records(
    transaction: Transaction,
    changed: Mapping[RecordKey, LockRecord],
    before: Mapping[RecordKey, LockRecord | None],
    now_ms: int,
) -> bool:
    """Write these records; False if another node created one of the new ones meanwhile."""
    if not changed:
        return True
    columns = zip(*((*key, *record_cells(record), before[key] is None) for key, record in changed.items()), strict=True)
    rows = await transaction.fetch(WRITE, *map(list, columns), now_ms)
    return bool(rows[0][0] == len(changed))


def written_at_ms(record: LockRecord) -> int:
    """The instant at which the record was written."""
    return record.freed_at_ms if isinstance(record, Free) else record.renewed_at_ms


def _record(row: Row) -> LockRecord:
    fencing_token, owner, expires_at_ms, deadline_ms, acquired, renewed, ttl, holder, freed_at_ms, retired = row[2:12]
    if freed_at_ms is not None:
        return free_record(fencing_token, freed_at_ms, retired)
    return Held(owner, fencing_token, expires_at_ms, deadline_ms, acquired, renewed, ttl, holder)
