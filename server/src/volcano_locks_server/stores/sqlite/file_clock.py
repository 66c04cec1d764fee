"""The time of a SQLite file: its newest instant, what is known about it, and how a restart continues from it.

Within one boot of the machine the time of the file continues from the newest instant by the clock of the boot, whatever
the date is set to (LEASE-1). In another boot it is the machine's wall clock. Unless both clocks were synchronised, the
time in between is not known to have passed, and takeovers are held (LEASE-17).

The jump is written by the first update, together with the instant that follows it. So a program that only opens the
file changes nothing in it.
"""

from typing import Any, Final

import apsw
from msgspec.structs import astuple, fields

from ...ports.clock import Clock, mark_of
from ...rules.clock_history import ClockHistory, ClockMark, unproven_ms
from ...rules.record_check import INSTANT_MS_MAX, damage_of_history
from ..errors import ClockDamagedError, clock_behind
from ..lock_rows import FREE_FROM

BEHIND_MS_MAX: Final = 5_000

_WRITE: Final = (
    "UPDATE newest_instant SET now_ms = ?, boot_id = ?, boot_ms = ?, is_synchronised = ?, jumped_at_ms = ?, "
    "jumped_by_ms = ?, jumps_ms = ?, last_hold_ms = ?, token_lead_ms = ?"
)
_PARTS: Final = (ClockMark, ClockHistory)
_LAST_FREE_FROM: Final = f"SELECT max({FREE_FROM}) FROM lock WHERE {FREE_FROM} <= {INSTANT_MS_MAX}"  # of intact records


class FileClock:
    """The time of the file on `connection`. Call `begin` once `behind_ms` is 0, then `now_ms`."""

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self._connection: Final = connection
        self._clock: Final = clock
        self._mark, self.history = read_clock(connection)
        self.newest_ms = self._mark.now_ms
        """The newest instant that was served, including before a restart; an earlier one is refused."""
        self._ahead_ms = continued_ahead_ms(self._mark, clock) or 0
        self.is_remembered = False

    def behind_ms(self) -> int:
        """How far the time is behind the newest instant."""
        return max(0, self.newest_ms - self.unchecked_ms())

    def unchecked_ms(self) -> int:
        """The time, which may be behind the newest instant."""
        return self._clock.now_ms() + self._ahead_ms

    def begin(self) -> None:
        """Recognise a jump since the newest instant. Call on the connection's thread."""
        now = mark_of(self._clock, self.unchecked_ms())
        by_ms = unproven_ms(self.newest_ms, self._mark, now) if self.newest_ms else 0
        self.history = self.history.after_jump(now.now_ms, by_ms, last_free_from_ms(self._connection))

    def now_ms(self) -> int:
        """The instant to decide by. Raises StoreUnavailableError if time would go back."""
        now_ms = self.unchecked_ms()
        if now_ms < self.newest_ms:
            raise clock_behind(now_ms, self.newest_ms)
        self.newest_ms = now_ms
        return now_ms

    def remember(self, now_ms: int) -> None:
        """Write the newest instant in the transaction that was evaluated at that instant."""
        write_clock(self._connection, mark_of(self._clock, now_ms), self.history)
        self.is_remembered = True

    def continue_from(self, began_ms: int, newest_ms: int, history: ClockHistory) -> None:
        """Write the newest instant and the history of another store, whose clock read `newest_ms` at `began_ms`.

        If this clock was ahead of that one, it jumped.
        """
        self.history = history.after_jump(began_ms, began_ms - newest_ms)
        self.newest_ms = max(self.newest_ms, newest_ms)
        mark = mark_of(self._clock, self.unchecked_ms())
        write_clock(self._connection, mark.later(max(0, self.newest_ms - mark.now_ms)), self.history)


def continued_ahead_ms(mark: ClockMark, clock: Clock) -> int | None:
    """How far the time that continues `mark` within its boot is ahead of `clock`; None in another boot."""
    now = mark_of(clock, clock.now_ms())
    continued_ms = mark.continued_ms(now)
    if continued_ms is None or continued_ms < mark.now_ms - BEHIND_MS_MAX:  # a snapshot of the machine was resumed
        return None
    return continued_ms - now.now_ms


def last_free_from_ms(connection: apsw.Connection) -> int:
    """The latest instant from which on a lock was or is free; 0 if there is none. Raises apsw.Error."""
    return int(connection.execute(_LAST_FREE_FROM).get or 0)


def read_clock(connection: apsw.Connection) -> tuple[ClockMark, ClockHistory]:
    """The mark of the newest instant, and the history, in a file of any schema version.

    Raises apsw.Error, and ClockDamagedError.
    """
    found = stored_clock(connection)
    if found is None:
        raise ClockDamagedError("newest_instant has no row")
    parts = ({one.name: found[one.name] for one in fields(part) if one.name in found} for part in _PARTS)
    mark, history = ClockMark(**next(parts)), ClockHistory(**next(parts))
    if type(mark.now_ms) is not int or not 0 <= mark.now_ms <= INSTANT_MS_MAX:
        raise ClockDamagedError("newest_instant: now_ms is not an instant")
    if type(mark.boot_id) is not str or type(mark.boot_ms) is not int:
        raise ClockDamagedError("newest_instant: boot_id or boot_ms has a wrong type")
    if (damage := damage_of_history(history)) is not None:
        raise ClockDamagedError(f"newest_instant: {damage}")
    return mark, history


def stored_clock(connection: apsw.Connection) -> dict[str, Any] | None:
    """The cells of the clock's row by their names, None if there is no row; schema 1 has now_ms only."""
    found: dict[str, Any] | None = None
    for row in (cursor := connection.execute("SELECT * FROM newest_instant")):
        found = dict(zip((column[0] for column in cursor.description), row, strict=True))
    return found


def write_clock(connection: apsw.Connection, mark: ClockMark, history: ClockHistory) -> None:
    """Write both in place of the file's. Raises apsw.Error."""
    connection.execute(_WRITE, (*astuple(mark), *astuple(history)))
