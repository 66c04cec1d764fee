"""Sets the clock of a SQLite file back (see `clock_reset`). A file that is being served is refused."""

import json
from pathlib import Path
from typing import Any, Final

import apsw

from ...ports.clock import Clock, mark_of
from ..clock_reset import ClockReset, newer_than_shown
from ..lock_rows import HeldBounds, held_where
from .connection import run_in_transaction
from .file_clock import continued_ahead_ms, read_clock, write_clock
from .opened import opened_file
from .rows import damaged_rows

_NOT_DAMAGED: Final = "number NOT IN (SELECT value FROM json_each({}))"
_HELD: Final = (
    f"SELECT count(*), max(expires_at_ms) FROM lock WHERE {held_where('?1', '?2', '?3', '?4')} "
    f"AND {_NOT_DAMAGED.format('?5')}"
)
_MOVE_BACK: Final = (
    "UPDATE lock SET expires_at_ms = max(expires_at_ms - ?1, 0), deadline_ms = max(deadline_ms - ?1, 0), "
    "acquired_at_ms = max(acquired_at_ms - ?1, 0), renewed_at_ms = max(renewed_at_ms - ?1, 0), "
    "freed_at_ms = max(freed_at_ms - ?1, 0), queue_state = NULL "
    f"WHERE {_NOT_DAMAGED.format('?2')}"
)


async def plan_reset(path: Path, clock: Clock) -> ClockReset:
    """What a reset would do. Raises StoreUnavailableError."""
    with opened_file(path) as connection:
        return _plan(connection, clock)


async def reset_clock(path: Path, clock: Clock, shown: ClockReset) -> None:
    """Carry out what was shown. Raises StoreUnavailableError, with the file unchanged."""
    with opened_file(path) as connection:

        def work() -> None:
            found = _plan(connection, clock)
            newer_than_shown(shown, found)
            _mark, history = read_clock(connection)
            connection.execute(_MOVE_BACK, (found.by_ms, json.dumps([*damaged_rows(connection)])))
            write_clock(connection, mark_of(clock, found.now_ms), history.after_reset(found.by_ms))

        run_in_transaction(connection, work)


def _plan(connection: apsw.Connection, clock: Clock) -> ClockReset:
    """Within the boot that wrote the newest instant, the time that has passed since then counts."""
    mark, history = read_clock(connection)
    now_ms = clock.now_ms()
    ahead_ms = continued_ahead_ms(mark, clock)
    newest_ms = max(mark.now_ms, now_ms + (ahead_ms or 0))
    damaged = damaged_rows(connection)
    values = *HeldBounds.at(newest_ms, history), json.dumps([*damaged])
    found: list[Any] = connection.execute(_HELD, values).fetchall()
    ((held, last_ms),) = found
    return ClockReset(newest_ms, now_ms, held, max(0, (last_ms or 0) - newest_ms), [*damaged.values()])
