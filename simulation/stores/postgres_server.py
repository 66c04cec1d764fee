"""One transaction in the model database's server: its row locks, its statement, and what it has written so far."""

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, cast

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.stores.postgres import history, lock_pages, locks, quotas, read_only, rows, tables
from volcano_locks_server.stores.postgres.connections import IDLE_SECONDS_MAX, LOCK_SECONDS_MAX

from .observed import Update

if TYPE_CHECKING:
    from .postgres import ModelDatabase

Row = tuple[Any, ...]
PROOF: Final = "a commit that proves that the server is writable"
_BUSY: Final = ("store_busy", "another transaction holds rows of the model's database for too long")
_EXPIRES, _FREED = 2, 8  # places of expires_at_ms and freed_at_ms in a row after its key
_ENDED_COLUMNS: Final = len(rows.ENDED)
_TAKE, _PURGE_QUOTA, _IS_STANDBY = quotas._TAKE, locks._PURGE_QUOTA, read_only._CANNOT_WRITE


class ServerTransaction:
    """One transaction in the server: what it has locked and written so far, and the statement that it runs."""

    def __init__(self, database: "ModelDatabase") -> None:
        self.generation: Final = database.generation
        self.is_over = False
        self.active_at = database.world.now
        self._database: Final = database
        self._locks: Final[dict[object, None]] = {}
        self._writes: Final[list[Callable[[], None]]] = []
        self._statement: Generator[object, None, object] | None = None
        self._respond: Callable[[object], None] = _ignore
        self._statement_number = 0
        self._is_awaiting_row = False
        self._is_watched = False

    def run(self, sql: str, values: tuple[Any, ...], respond: Callable[[object], None]) -> None:
        self.active_at = self._database.world.now
        self._statement, self._respond = self._execute(sql, values), respond
        self._statement_number += 1
        self._is_awaiting_row = False
        self.go_on()

    def go_on(self) -> None:
        """Run the statement until it has to wait for a row, or to its end."""
        statement = self._statement
        assert statement is not None
        try:
            while True:
                row = next(statement)
                holder = self._database.locked.get(row)
                if holder is not None and holder is not self:
                    self._database.waiting.setdefault(row, deque()).append(self)
                    if not self._is_awaiting_row:
                        self._is_awaiting_row = True
                        ends_at = self.active_at + LOCK_SECONDS_MAX
                        self._database.world.at(ends_at, self._give_up, self._statement_number)
                    return
                self._database.locked[row] = self
                self._locks[row] = None
        except StopIteration as end:
            self._statement = None
            self.active_at = self._database.world.now
            if not self._is_watched:
                self._is_watched = True
                self._database.world.after(IDLE_SECONDS_MAX, self._end_if_idle)
            respond, self._respond = self._respond, _ignore
            respond(end.value)

    def commit(self, update: Update | None) -> None:
        for write in self._writes:
            write()
        if update is not None and self._writes:
            self._database.on_commit(update)
        self.end()

    def end(self) -> None:
        """Release the rows; the first transaction that waits for each of them goes on."""
        if self.is_over:
            return
        self.is_over = True
        database = self._database
        for row in self._locks:
            if database.locked.get(row) is self:
                del database.locked[row]
            queue = database.waiting.get(row)
            while queue and row not in database.locked:
                waiting = queue.popleft()
                if not waiting.is_over:
                    database.locked[row] = waiting
                    waiting._locks[row] = None
                    database.world.after(0.0, waiting.go_on_with, row)
            if queue is not None and not queue:
                del database.waiting[row]

    def go_on_with(self, _row: object) -> None:
        if not self.is_over:
            self.go_on()

    def _give_up(self, number: int) -> None:
        if not self.is_over and self._statement is not None and number == self._statement_number:
            self._statement = None
            self.end()
            self._respond(StoreUnavailableError(*_BUSY))

    def _end_if_idle(self) -> None:
        """Called again until the transaction ends, or has been idle for IDLE_SECONDS_MAX."""
        if self.is_over:
            return
        if self._statement is None and self._database.world.now - self.active_at >= IDLE_SECONDS_MAX - 1e-6:
            self.end()
        else:
            since = self.active_at if self._statement is None else self._database.world.now
            self._database.world.at(since + IDLE_SECONDS_MAX, self._end_if_idle)

    def _execute(  # noqa: PLR0911, PLR0912 - one branch for each statement
        self, sql: str, values: tuple[Any, ...]
    ) -> Generator[object, None, object]:
        """The rows of a statement. Yields each row before it is locked, until it is."""
        database = self._database
        if sql is rows.LOCK:
            return (yield from self._lock(values, locks_rows="FOR UPDATE OF lock" in sql))
        if sql is rows.WRITE:
            return (yield from self._write(values))
        if sql is rows.WRITE_WITH_HISTORY:  # no node of the simulation reads the history
            return (yield from self._write(values[:-_ENDED_COLUMNS]))
        if sql is rows.NOW:
            return [(database.clock_ms(), *self._clock_row())]
        if sql is rows.CLOCK_MARK:
            return [database.newest[1:5]]
        if sql is rows.LOCK_CLOCK:
            yield "clock"
            return [()]
        if sql is rows.WRITE_CLOCK:
            now_ms, *rest = values
            self._writes.append(lambda: setattr(database, "newest", (now_ms, now_ms, *rest)))
            return []
        if sql is rows.LAST_FREE_FROM:
            return [(max(map(_free_from_ms, database.rows.values()), default=0),)]
        if sql is lock_pages.FEW_HELD:
            return [(False,)]
        if sql is lock_pages.BY_KEY:
            project_id, begin, end, limit = values
            found = sorted(key for key in database.rows if key[0] == project_id and begin <= key[1] < end)
            return [(*key, *database.rows[key]) for key in found[:limit]]
        if sql is locks.PURGE:
            over_ms, limit = values
            old = [key for key, row in database.rows.items() if _free_from_ms(row) <= over_ms]
            gone = [key for key in old if key not in database.locked][:limit]
            yield from gone
            purged = [(*key, *database.rows[key]) for key in gone]
            self._writes.append(lambda: _delete(database.rows, gone))
            return purged
        if sql is _TAKE:
            started_at_ms, project_id, wanted, limit = values
            yield (started_at_ms, project_id)
            taken = database.taken.get((started_at_ms, project_id), 0)
            drawn = max(0, min(wanted, limit - taken))
            self._writes.append(lambda: database.taken.update({(started_at_ms, project_id): taken + drawn}))
            return [(drawn,)]
        if sql is _IS_STANDBY:
            return [(False, "1 1")]
        if sql in (_PURGE_QUOTA, PROOF, history.TRIM, rows.WRITE_ENTRIES, tables.INSERT_AUDIT):
            return []
        raise NotImplementedError(sql)

    def _lock(self, values: tuple[Any, ...], *, locks_rows: bool) -> Generator[object, None, object]:
        database = self._database
        keys: list[tuple[str, str]] = sorted(zip(*values, strict=True))
        for key in keys if locks_rows else ():
            if key in database.rows:
                yield key
        nothing = (None,) * (rows.COLUMNS.count(",") + 1)
        found = [
            (*key, *database.rows[key], *nothing[:8])
            for key in keys
            if key in database.rows and (key in self._locks or not locks_rows)
        ]
        return [*found, (*nothing, database.clock_ms(), *self._clock_row())]

    def _write(self, values: tuple[Any, ...]) -> Generator[object, None, object]:
        database = self._database
        *columns, now_ms, boot_id, boot_ms, is_synchronised = values
        written = 0
        for *cells, is_new in sorted(zip(*columns, strict=True), key=lambda row: (row[-1], row[0], row[1])):
            key, row = (cells[0], cells[1]), tuple(cells[2:])
            if is_new:
                yield key
                if key in database.rows:
                    continue
            written += 1
            self._writes.append(lambda key=key, row=row: database.rows.update({key: row}))  # type: ignore[misc]
        if database.newest[0] + 1_000 <= now_ms and "clock" not in database.locked:
            yield "clock"
            mark = (now_ms, now_ms, boot_id, boot_ms, is_synchronised)
            self._writes.append(lambda: setattr(database, "newest", (*mark, *database.newest[5:])))
        return [(written,)]

    def _clock_row(self) -> Row:
        return (self._database.newest[0], "1 1", *self._database.newest[5:])


def _ignore(_value: object) -> None: ...


def _free_from_ms(row: Row) -> int:
    freed_at_ms = row[_FREED]
    return cast("int", freed_at_ms if freed_at_ms is not None else row[_EXPIRES] + 1_000)


def _delete(stored: dict[tuple[str, str], Row], keys: list[tuple[str, str]]) -> None:
    for key in keys:
        stored.pop(key, None)
