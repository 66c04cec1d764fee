"""Lock records as rows: many in a statement, as one array for each column."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

from msgspec.structs import replace

from ...ports.lock_store import EndedHold, RecordKey
from ...rules.clock_history import NO_HISTORY, ClockHistory, ClockMark
from ...rules.lease import Damaged, Free, Held, LockRecord, StoredRecord
from ...rules.record_check import damage_of_history, is_intact
from ...rules.values import LockKey
from ..damage import damaged, shown_row
from ..errors import ClockDamagedError
from ..history_cells import entry_text, facts_of
from ..lock_rows import FREE_FROM, INTACT, decode_queue_state, free_record, record_cells
from .connections import Row, Transaction
from .schema_mark import MARK

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
    "queue_state": "text",
    "hold_facts": "text",
}
COLUMNS: Final = ", ".join(_TYPES)
_CELL_NAMES: Final = list(_TYPES)[2:]
_KEPT: Final = ", ".join(_CELL_NAMES)
_NOWHERE: Final = ", ".join(f"NULL::{kind}" for kind in _TYPES.values())
CLOCK_NOW: Final = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

HISTORY: Final = "jumped_at_ms, jumped_by_ms, jumps_ms, last_hold_ms, token_lead_ms"
_NO_CLOCK: Final = "NULL::bigint, NULL::bigint, NULL::text" + 5 * ", NULL::bigint"

NOW: Final = f"SELECT {CLOCK_NOW}, now_ms, {MARK}, {HISTORY} FROM volcano_locks.newest_instant"
CLOCK_MARK: Final = "SELECT mark_ms, boot_id, boot_ms, is_synchronised FROM volcano_locks.newest_instant"
LOCK_CLOCK: Final = "SELECT FROM volcano_locks.newest_instant FOR UPDATE"
WRITE_CLOCK: Final = f"""
    UPDATE volcano_locks.newest_instant SET (now_ms, mark_ms, boot_id, boot_ms, is_synchronised, {HISTORY}) =
        ($1, $1, $2, $3, $4, $5, $6, $7, $8, $9)"""
WRITTEN_AT: Final = (
    f"SELECT coalesce(max(greatest(freed_at_ms, renewed_at_ms)), 0) FROM volcano_locks.lock WHERE {INTACT}"
)
LAST_FREE_FROM: Final = f"SELECT coalesce(max({FREE_FROM}), 0) FROM volcano_locks.lock"

# The last row holds the clock, which is read after the rows before it are locked (case 27).
LOCK: Final = f"""
    SELECT {COLUMNS}, {_NO_CLOCK} FROM (
        SELECT lock.* FROM unnest($1::text[], $2::text[]) AS asked (project_id, key)
        JOIN volcano_locks.lock ON lock.project_id = asked.project_id AND lock.key = asked.key
        ORDER BY lock.project_id, lock.key FOR UPDATE OF lock
    ) AS locked
    UNION ALL SELECT {_NOWHERE}, {CLOCK_NOW}, now_ms, {MARK}, {HISTORY} FROM volcano_locks.newest_instant"""

_IS_NEW: Final = f"${len(_TYPES) + 1}"
_NOW_MS, _BOOT_ID, _BOOT_MS, _IS_SYNCHRONISED = (f"${len(_TYPES) + place}" for place in range(2, 6))

# A missing row is locked by inserting it; the second transaction to do so inserts nothing. Rows are inserted in key
# order, so that two transactions with the same rows cannot deadlock.
WRITE: Final = f"""
    WITH given AS (
        SELECT * FROM unnest({", ".join(f"${index}::{kind}[]" for index, kind in enumerate(_TYPES.values(), 1))},
            {_IS_NEW}::boolean[]) AS given ({COLUMNS}, is_new)
    ), updated AS (
        UPDATE volcano_locks.lock SET ({_KEPT}) = ({", ".join(f"given.{column}" for column in _CELL_NAMES)})
        FROM given WHERE NOT is_new AND lock.project_id = given.project_id AND lock.key = given.key RETURNING 1
    ), inserted AS (
        INSERT INTO volcano_locks.lock ({COLUMNS}) SELECT {COLUMNS} FROM given WHERE is_new ORDER BY project_id, key
        ON CONFLICT DO NOTHING RETURNING 1
    ), marked AS (
        UPDATE volcano_locks.newest_instant
        SET (now_ms, mark_ms, boot_id, boot_ms, is_synchronised) =
            ({_NOW_MS}, {_NOW_MS}, {_BOOT_ID}, {_BOOT_MS}, {_IS_SYNCHRONISED})
        WHERE one = (
            SELECT one FROM volcano_locks.newest_instant WHERE now_ms + 1000 <= {_NOW_MS} FOR UPDATE SKIP LOCKED)
    )
    SELECT (SELECT count(*) FROM updated) + (SELECT count(*) FROM inserted)"""
ENDED: Final = {
    "project_id": "text",
    "key": "text",
    "fencing_token": "bigint",
    "ended_at_ms": "bigint",
    "entry": "text",
}


def _add_entries(first: int) -> str:
    """The statement that adds the entries in the arrays from the parameter `first` on."""
    arrays = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(ENDED.values(), first))
    return f"INSERT INTO volcano_locks.hold ({', '.join(ENDED)}) SELECT * FROM unnest({arrays})"


WRITE_ENTRIES: Final = _add_entries(1)
WRITE_WITH_HISTORY: Final = WRITE.replace(
    "), marked AS (", f"), ended AS ({_add_entries(len(_TYPES) + 6)}), marked AS ("
)

PAGE: Final = f"""
    SELECT {COLUMNS} FROM volcano_locks.lock
    WHERE (project_id, key) > ($1, $2) AND EXISTS (SELECT FROM volcano_locks.project WHERE project.id = project_id)
    ORDER BY project_id, key LIMIT $3"""


class ClockReading(NamedTuple):
    """The database's clock, the newest instant stored in the database, the schema's mark, and the clock's history."""

    database_ms: int
    newest_ms: int
    schema_mark: str
    history: ClockHistory

    @classmethod
    def in_last(cls, rows: Sequence[Row], first: int = 0) -> Self:
        """The reading in the last row, in the cells of NOW from the cell `first` on.

        Raises ClockDamagedError if the row of the clock is gone or damaged.
        """
        if not rows or rows[-1][first] is None:
            raise ClockDamagedError("volcano_locks.newest_instant has no row")
        database_ms, newest_ms, schema_mark, *cells = rows[-1][first:]
        history = ClockHistory(*cells) if any(cells) else NO_HISTORY
        if history is not NO_HISTORY and (damage := damage_of_history(history)) is not None:
            raise ClockDamagedError(f"volcano_locks.newest_instant: {damage}")
        return cls(database_ms, newest_ms, schema_mark, history)


def mark_cells(mark: ClockMark) -> tuple[int, str, int, bool]:
    """The values of `now_ms` and of the columns about it."""
    return mark.now_ms, mark.boot_id, mark.boot_ms, mark.is_synchronised


async def read_page(transaction: Transaction, after: RecordKey, limit: int) -> dict[RecordKey, StoredRecord]:
    """Up to `limit` records after `after` in key order, without those of deleted projects."""
    rows = await transaction.fetch(PAGE, *after, limit)
    return {RecordKey(row[0], LockKey(row[1])): _record(row) for row in rows}


def keyed_lock(row: Row) -> tuple[RecordKey, StoredRecord]:
    """The lock and the record in a row of COLUMNS."""
    return RecordKey(row[0], LockKey(row[1])), _record(row)


def keyed_record(row: Row) -> tuple[LockKey, StoredRecord]:
    """The key and the record in a row of COLUMNS."""
    return LockKey(row[1]), _record(row)


async def lock_records(
    transaction: Transaction, keys: Sequence[RecordKey]
) -> tuple[dict[RecordKey, StoredRecord | None], ClockReading]:
    """Lock the records of `keys` and return them (None if missing), then the database's clock, read after that."""
    records: dict[RecordKey, StoredRecord | None] = dict.fromkeys(keys)
    rows = await transaction.fetch(LOCK, [key.project_id for key in keys], [key.key for key in keys])
    reading = ClockReading.in_last(rows, len(_TYPES))
    for row in rows[:-1]:
        records[row[0], row[1]] = _record(row)  # type: ignore[index]  # equal to its RecordKey, which stays the key
    return records, reading


async def write_records(
    transaction: Transaction,
    changed: Mapping[RecordKey, LockRecord],
    before: Mapping[RecordKey, StoredRecord | None],
    mark: ClockMark,
    ended: Sequence[EndedHold] = (),
) -> bool:
    """Write these records and entries; False if another node created one of the new records meanwhile."""
    if not changed:
        return True
    columns = zip(*((*key, *record_cells(record), before[key] is None) for key, record in changed.items()), strict=True)
    values = [*map(list, columns), *mark_cells(mark)]
    if ended:
        rows = await transaction.fetch(WRITE_WITH_HISTORY, *values, *_entry_columns(ended))
    else:
        rows = await transaction.fetch(WRITE, *values)
    return bool(rows[0][0] == len(changed))


async def write_entries(transaction: Transaction, ended: Sequence[EndedHold]) -> None:
    """Add these entries to the history."""
    await transaction.fetch(WRITE_ENTRIES, *_entry_columns(ended))


def _entry_columns(ended: Sequence[EndedHold]) -> list[list[object]]:
    cells = ((*key, one.fencing_token, one.ended_at_ms, entry_text(one)) for key, one in ended)
    return [list(column) for column in zip(*cells, strict=True)]


def written_at_ms(record: LockRecord) -> int:
    """The instant at which the record was written."""
    return record.freed_at_ms if isinstance(record, Free) else record.renewed_at_ms


def _record(row: Row) -> StoredRecord:
    """The record in a row of COLUMNS; every row is decoded here."""
    cells = row[2 : len(_TYPES)]
    token, owner, expires_at_ms, deadline_ms, acquired, renewed, ttl, holder, freed_at_ms, retired, *json = cells
    state, facts = json
    record: LockRecord
    if freed_at_ms is not None:
        if retired is None:
            return Damaged("retired_digests is missing", shown_row(_CELL_NAMES, cells))
        record = free_record(token, freed_at_ms, retired, state, facts)
    else:
        queue_state = decode_queue_state(state)
        record = Held(owner, token, expires_at_ms, deadline_ms, acquired, renewed, ttl, holder, queue_state)
        if facts is not None:
            record = replace(record, facts=facts_of(facts, token))
    return record if is_intact(record) else damaged(record, _CELL_NAMES, cells)
