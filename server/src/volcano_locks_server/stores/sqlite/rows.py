"""Lock records as rows, many in a statement.

Each step of a statement releases the interpreter's lock and then waits for it while the event loop is busy, so a batch
uses few steps: one SELECT that returns all keys as one JSON text, and one upsert of all changed rows. Both take their
rows as VALUES, padded with NULLs to a power of two, so that a few statements stay prepared.

A row that does not fit into that text spoils it for all, so its rows are then read and decoded one by one (LEASE-18).
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, islice
from typing import Any, Final

import apsw
import msgspec

from ...ports.lock_store import RecordKey, lock_name
from ...rules.errors import DamagedRecordError, LockError
from ...rules.lease import Damaged, Held, LockRecord, StoredRecord
from ...rules.record_check import damage_of, is_intact
from ...rules.values import LockKey
from ..damage import damaged, shown_row
from ..history_cells import facts_of
from ..lock_rows import decode_queue_state, free_record, record_cells

ROWS_MAX: Final = 512  # per statement: 512 x 14 values stay below SQLite's limit of 32,766

_COLUMNS: Final = (
    "project_id, key, fencing_token, owner_digest, expires_at_ms, deadline_ms, acquired_at_ms, renewed_at_ms, "
    "ttl_seconds, holder, freed_at_ms, retired_digests, queue_state, hold_facts"
)
_WIDTH: Final = _COLUMNS.count(",") + 1

# index in the batch, fencing token, freed_at_ms, retired digests, owner digest, five numbers of a lease, holder, queue
# state, facts
_Row = tuple[
    int,
    int,
    int | None,
    str,
    str,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    str | None,
    str | None,
    str | None,
]
_decode: Final = msgspec.json.Decoder(list[_Row]).decode
_decode_keyed: Final = msgspec.json.Decoder(list[tuple[str, _Row]]).decode
_CELLS: Final = (
    "fencing_token, freed_at_ms, hex(retired_digests), hex(owner_digest), expires_at_ms, deadline_ms, acquired_at_ms, "
    "renewed_at_ms, ttl_seconds, holder, queue_state, hold_facts"
)
_CELL_NAMES: Final = re.sub(r"hex\((\w+)\)", r"\1", _CELLS).split(", ")
RAW_CELLS: Final = re.sub(r"\b(holder|queue_state|hold_facts)\b", r"CAST(\1 AS BLOB)", _CELLS)
_ONE: Final = f"SELECT {RAW_CELLS} FROM lock WHERE project_id = ? AND key = ?"
_ALL: Final = f"SELECT number, CAST(project_id AS BLOB), CAST(key AS BLOB), {RAW_CELLS} FROM lock"
_NOT_DECODED: Final = (UnicodeDecodeError, msgspec.MsgspecError)


def read_records(connection: apsw.Connection, keys: Sequence[RecordKey]) -> dict[RecordKey, StoredRecord | None]:
    """The records of `keys`; None for one that does not exist."""
    records: dict[RecordKey, StoredRecord | None] = dict.fromkeys(keys)
    for begin in range(0, len(keys), ROWS_MAX):
        part = keys[begin : begin + ROWS_MAX]
        rows = padded(len(part))
        values = [*chain.from_iterable(part), *([None] * (2 * (rows - len(part))))]
        try:
            for row in _decode(connection.execute(_select(rows), values).get):
                records[part[row[0]]] = _record(row)
        except _NOT_DECODED:
            for key in part:
                for row in connection.execute(_ONE, key):
                    records[key] = record_of_cells(row)
    return records


def read_range(
    connection: apsw.Connection, rows: str, values: Sequence[str | int]
) -> list[tuple[LockKey, StoredRecord]]:
    """The keys and records that the query `rows` selects, in any order, without those whose key is no lock's."""
    text = f"SELECT json_group_array(json_array(key, json_array(0, {_CELLS}))) FROM ({rows})"
    try:
        return [(LockKey(key), _record(row)) for key, row in _decode_keyed(connection.execute(text, values).get)]
    except _NOT_DECODED:
        found = []
        for key, *cells in connection.execute(f"SELECT CAST(key AS BLOB), {RAW_CELLS} FROM ({rows})", values):
            with suppress(LockError):
                found.append((LockKey.parse(bytes(key).decode("ascii", "replace")), record_of_cells(cells)))
        return found


def damaged_rows(connection: apsw.Connection) -> dict[int, DamagedRecordError]:
    """The damage of each damaged row, by the number of the row."""
    found = {}
    for number, project_id, key, *cells in connection.execute(_ALL):
        record = record_of_cells(cells)
        name = RecordKey(_shown(project_id), LockKey(_shown(key)))
        if isinstance(record, Damaged):
            found[number] = DamagedRecordError(lock_name(name), record.reason, record.stored)
    return found


def _shown(raw: bytes) -> str:
    return bytes(raw).decode("utf-8", "backslashreplace")


def write_records(connection: apsw.Connection, changed: Iterable[tuple[RecordKey, LockRecord]]) -> None:
    """Insert or replace these records."""
    remaining = iter(changed)
    while part := list(islice(remaining, ROWS_MAX)):
        rows = padded(len(part))
        values: list[str | int | bytes | None] = []
        for key, record in part:
            values += key
            values += record_cells(record)
        values += [None] * (_WIDTH * (rows - len(part)))
        connection.execute(_upsert(rows), values)


def _record(row: _Row) -> StoredRecord:
    """The record in a row; every row is decoded here."""
    _index, token, freed_at_ms, retired, owner, *lease, holder, state, facts = row
    expires_at_ms, deadline_ms, acquired, renewed, ttl = lease
    if freed_at_ms is not None:
        free = free_record(token, freed_at_ms, bytes.fromhex(retired), state, facts)
        return free if is_intact(free) else damaged(free, _CELL_NAMES, row[1:])
    # `is_intact` checks that a held row has all of these.
    held = Held(
        bytes.fromhex(owner),
        token,
        expires_at_ms,  # type: ignore[arg-type]
        deadline_ms,  # type: ignore[arg-type]
        acquired,  # type: ignore[arg-type]
        renewed,  # type: ignore[arg-type]
        ttl,  # type: ignore[arg-type]
        holder,
        decode_queue_state(state),
        facts=facts_of(facts, token),
    )
    return held if is_intact(held) else damaged(held, _CELL_NAMES, row[1:])


def record_of_cells(cells: Sequence[Any]) -> StoredRecord:
    """The record in a row of RAW_CELLS, whose text may be no text."""
    *others, raw_holder, raw_queue_state, raw_facts = cells
    try:
        holder = None if raw_holder is None else bytes(raw_holder).decode()
    except UnicodeDecodeError:
        return Damaged("holder is not text", shown_row(_CELL_NAMES, cells))
    record = _record((0, *others, holder, raw_queue_state, raw_facts))
    if not isinstance(record, Damaged) and damage_of(record) is not None:
        return damaged(record, _CELL_NAMES, cells)
    return record


def padded(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


@cache
def _select(rows: int) -> str:
    requested = ",".join(f"({index},?,?)" for index in range(rows))
    return (
        f"SELECT json_group_array(json_array(asked.column1, {_CELLS})) "
        f"FROM (VALUES {requested}) AS asked CROSS JOIN lock ON project_id = asked.column2 AND key = asked.column3"
    )


@cache
def _upsert(rows: int) -> str:
    one = f"({','.join('?' * _WIDTH)})"
    kept = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS.split(", ")[2:])
    return (
        f"INSERT INTO lock ({_COLUMNS}) SELECT * FROM (VALUES {','.join([one] * rows)}) WHERE column1 IS NOT NULL "
        f"ON CONFLICT (project_id, key) DO UPDATE SET {kept}"
    )
