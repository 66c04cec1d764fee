"""Lock records as rows, many in a statement.

Each step of a statement releases the interpreter's lock and then waits for it while the event loop is busy, so a batch
uses few steps: one SELECT that returns all keys as one JSON text, and one upsert of all changed rows. Both take their
rows as VALUES, padded with NULLs to a power of two, so that a few statements stay prepared.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, islice
from typing import Final

import apsw
import msgspec

from ...ports.lock_store import RecordKey
from ...rules.lease import Held, LockRecord
from ...rules.values import LockKey
from ..lock_rows import free_record, record_cells

ROWS_MAX: Final = 512  # per statement: 512 x 12 values stay below SQLite's limit of 32,766

_COLUMNS: Final = (
    "project_id, key, fencing_token, owner_digest, expires_at_ms, deadline_ms, acquired_at_ms, renewed_at_ms, "
    "ttl_seconds, holder, freed_at_ms, retired_digests"
)
_WIDTH: Final = _COLUMNS.count(",") + 1

# index in the batch, fencing token, freed_at_ms, retired digests, owner digest, other fields of a lease
_Row = tuple[int, int, int | None, str, str, int | None, int | None, int | None, int | None, int | None, str | None]
_decode: Final = msgspec.json.Decoder(list[_Row]).decode
_decode_keyed: Final = msgspec.json.Decoder(list[tuple[str, _Row]]).decode
_CELLS: Final = (
    "fencing_token, freed_at_ms, hex(retired_digests), hex(owner_digest), expires_at_ms, deadline_ms, acquired_at_ms, "
    "renewed_at_ms, ttl_seconds, holder"
)


def read_records(connection: apsw.Connection, keys: Sequence[RecordKey]) -> dict[RecordKey, LockRecord | None]:
    """The records of `keys`; None for one that does not exist."""
    records: dict[RecordKey, LockRecord | None] = dict.fromkeys(keys)
    for begin in range(0, len(keys), ROWS_MAX):
        part = keys[begin : begin + ROWS_MAX]
        rows = _padded(len(part))
        values = [*chain.from_iterable(part), *([None] * (2 * (rows - len(part))))]
        for row in _decode(connection.execute(_select(rows), values).get):
            records[part[row[0]]] = _record(row)
    return records


def read_range(connection: apsw.Connection, rows: str, values: Sequence[str | int]) -> list[tuple[LockKey, LockRecord]]:
    """The keys and records that the query `rows` selects, in any order."""
    text = f"SELECT json_group_array(json_array(key, json_array(0, {_CELLS}))) FROM ({rows})"
    return [(LockKey(key), _record(row)) for key, row in _decode_keyed(connection.execute(text, values).get)]


def write_records(connection: apsw.Connection, changed: Iterable[tuple[RecordKey, LockRecord]]) -> None:
    """Insert or replace these records."""
    remaining = iter(changed)
    while part := list(islice(remaining, ROWS_MAX)):
        rows = _padded(len(part))
        values: list[str | int | bytes | None] = []
        for key, record in part:
            values += key
            values += record_cells(record)
        values += [None] * (_WIDTH * (rows - len(part)))
        connection.execute(_upsert(rows), values)


def _record(row: _Row) -> LockRecord:
    _index, fencing_token, freed_at_ms, retired, owner, expires_at_ms, deadline_ms, acquired, renewed, ttl, holder = row
    if freed_at_ms is not None:
        return free_record(fencing_token, freed_at_ms, bytes.fromhex(retired))
    # The table's CHECK ensures that a held row has all of these.
    return Held(
        bytes.fromhex(owner),
        fencing_token,
        expires_at_ms,  # type: ignore[arg-type]
        deadline_ms,  # type: ignore[arg-type]
        acquired,  # type: ignore[arg-type]
        renewed,  # type: ignore[arg-type]
        ttl,  # type: ignore[arg-type]
        holder,
    )


def _padded(rows: int) -> int:
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
