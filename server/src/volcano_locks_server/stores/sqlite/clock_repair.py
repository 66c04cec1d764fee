"""Writes the record of a SQLite file's clock anew (CLI-31). A file that is being served is refused."""

from pathlib import Path
from typing import Final

from ...ports.audit_entry import AuditEntry
from ...ports.clock import Clock, mark_of
from ...rules.clock_history import NO_HISTORY
from ...rules.errors import DamagedRecordError
from ..damage import shown_row
from ..errors import CLOCK_RECORD, ClockDamagedError
from ..lock_rows import INTACT, TOKEN_LEAD
from .connection import run_in_transaction
from .file_clock import last_free_from_ms, read_clock, stored_clock, write_clock
from .opened import opened_file
from .tables import insert_audit

_WRITTEN_AT: Final = f"SELECT max(coalesce(freed_at_ms, renewed_at_ms)) FROM lock WHERE {INTACT}"
_TOKEN_LEAD: Final = f"SELECT {TOKEN_LEAD} FROM lock WHERE {INTACT}"
_DELETE: Final = "DELETE FROM newest_instant"
_INSERT: Final = "INSERT INTO newest_instant (one, now_ms) VALUES (1, 0)"


async def find_clock_damage(path: Path, _clock: Clock) -> DamagedRecordError | None:
    """The damage of the record, None if it is intact. Raises StoreUnavailableError."""
    with opened_file(path) as connection:
        try:
            read_clock(connection)
        except ClockDamagedError as error:
            cells = stored_clock(connection) or {}
            return DamagedRecordError(CLOCK_RECORD, error.reason, shown_row([*cells], [*cells.values()]))
    return None


async def repair_clock(path: Path, clock: Clock, entry: AuditEntry | None) -> None:
    """Write it anew. Raises StoreUnavailableError."""
    with opened_file(path) as connection:

        def work() -> None:
            now_ms = max(clock.now_ms(), int(connection.execute(_WRITTEN_AT).get or 0))
            lead_ms = max(0, int(connection.execute(_TOKEN_LEAD).get))
            connection.execute(_DELETE)
            connection.execute(_INSERT)
            history = NO_HISTORY.rewritten(now_ms, last_free_from_ms(connection), lead_ms)
            write_clock(connection, mark_of(clock, now_ms), history)
            if entry is not None:
                insert_audit(connection, entry)

        run_in_transaction(connection, work)
