"""The database's clock as a node may decide by it: never back, and with every jump recorded first.

An instant is refused with `clock_behind` if it is earlier than that of the record, the newest that this node has seen,
or the newest in the database. The last of these may be a second old, so that most batches need not write it. For a
single lock its own record is exact.

A jump (LEASE-17) is recognised by comparing each reading with the node's own clock, and at the start with what the last
writer knew. The transaction that found it ends without a decision. The jump is recorded in the database, where it binds
all nodes, and the transaction is repeated. A node that has not read the record yet finds the jump by itself.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from ...ports.clock import Clock, mark_of
from ...ports.lock_store import Records
from ...rules.clock_history import JUMP_MS_MIN, NO_HISTORY, ClockHistory, ClockMark, unproven_ms
from ...rules.errors import StoreUnavailableError
from ...rules.lease import Free, Held
from ..clock_comparison import ClockComparison
from ..errors import clock_behind, refuse_clock_far_behind
from .connections import ConnectionPool, Transaction
from .faults import StoreWentBackError
from .rows import CLOCK_MARK, LAST_FREE_FROM, LOCK_CLOCK, NOW, WRITE_CLOCK, ClockReading, mark_cells, written_at_ms

CLOCK_BEHIND_MAX_MS: Final = 5_000

T = TypeVar("T")


class ClockJumpedError(StoreUnavailableError):
    """The database's clock jumped, and the jump must be recorded before a decision."""

    def __init__(self) -> None:
        super().__init__("clock_jumped", "the database's clock moved ahead by itself: try again in a moment")


class Known(NamedTuple):
    """What a node knew before a statement that reads the clock: the newest instant that it had seen, the newest that it
    had read from the database, and the time on its own clock.
    """

    seen_ms: int
    stored_ms: int
    asked_ms: int


class DatabaseClock:
    """`node` is this node's clock. `instead` replaces the database's clock, for tests."""

    def __init__(self, connections: ConnectionPool, node: Clock, instead: Clock | None) -> None:
        self._connections: Final = connections
        self._node: Final = node
        self._instead: Final = instead
        self._comparison: Final = ClockComparison(node)
        self._is_compared = False
        self._newest_up_ms = 0
        self._stored_ms = 0
        self.newest_ms = 0
        self.history = NO_HISTORY
        """As of the latest reading."""

    def known(self) -> Known:
        """To be called before a statement that reads the clock."""
        return Known(self.newest_ms, self._stored_ms, self._comparison.asked_ms())

    def estimated_ms(self) -> int:
        """The time now, computed from the latest reading."""
        return self.newest_ms + self._node.boot().up_ms - self._newest_up_ms

    def ahead_of_node_ms(self) -> int:
        """How far the database's clock is ahead of this node's, by the latest reading."""
        return self.estimated_ms() - self._node.now_ms()

    async def begin(self) -> None:
        """At the start: refuse a clock that is far behind, and record a jump since the newest instant.

        A clock slightly behind catches up while the node runs; the first instant after that is compared then.
        """
        async with self._connections.transaction() as transaction:
            transaction.keep = False  # a commit could wait for a standby
            reading = await self.read(transaction)
            self._connections.guard.check(reading.schema_mark)
            refuse_clock_far_behind(
                "the clock of the database's machine", reading.database_ms, reading.newest_ms, CLOCK_BEHIND_MAX_MS
            )
            is_recorded = reading.database_ms < reading.newest_ms or not await self._compare(transaction)
        if not is_recorded:
            await self.record_jump()

    async def now_ms(self, transaction: Transaction, records: Records) -> int:
        """The instant to decide by. `records` were read before it. Raises as `check`."""
        known = self.known()
        return self.check(await self.read(transaction), records, known)

    def check(self, reading: ClockReading, records: Records, known: Known) -> int:
        """The instant to decide by. `known` is from before the reading.

        Raises StoreUnavailableError if time would go back, StoreWentBackError if the database did, and ClockJumpedError
        if the clock jumped.
        """
        self._connections.guard.check(reading.schema_mark)
        if reading.newest_ms < known.stored_ms:
            raise StoreWentBackError
        now_ms = reading.database_ms if self._instead is None else self._instead.now_ms()
        newest_ms = max(known.seen_ms, reading.newest_ms)
        for record in records.values():
            if isinstance(record, Held | Free):
                newest_ms = max(newest_ms, written_at_ms(record))
        if now_ms < newest_ms:
            raise clock_behind(now_ms, newest_ms)
        if not self._is_compared or self._comparison.jump_ms(now_ms, reading.history, known.asked_ms):
            raise ClockJumpedError
        self._note(now_ms, reading)
        return now_ms

    async def after_jumps(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which is repeated after a jump that it finds."""
        try:
            return await work()
        except ClockJumpedError:
            await self.record_jump()
            return await work()

    async def record_jump(self) -> None:
        """Record a jump that `check` found, unless another node has recorded it."""
        async with self._connections.transaction() as transaction:
            await transaction.fetch(LOCK_CLOCK)
            await self._compare(transaction, records=True)

    def mark(self, now_ms: int) -> ClockMark:
        """What this node knows about the instant `now_ms` of the database's clock."""
        return mark_of(self._node, now_ms)

    async def read(self, transaction: Transaction) -> ClockReading:
        """The clock, without any check of the time."""
        reading = ClockReading.in_last(await transaction.fetch(NOW))
        return reading if self._instead is None else reading._replace(database_ms=self._instead.now_ms())

    async def _compare(self, transaction: Transaction, *, records: bool = False) -> int:
        """How far the clock jumped without a record: by the last writer's mark at first, then by this node's clock.

        Record the jump if `records`; then the row of the clock is locked.
        """
        asked_ms = self._comparison.asked_ms()
        reading = await self.read(transaction)
        now_ms, history = reading.database_ms, reading.history
        if self._is_compared:
            by_ms = self._comparison.jump_ms(now_ms, history, asked_ms)
        elif reading.newest_ms:
            mark = ClockMark(*(await transaction.fetch(CLOCK_MARK))[0])
            by_ms = unproven_ms(reading.newest_ms, mark, replace(self.mark(now_ms), boot_ms=asked_ms))
        else:
            by_ms = 0
        if by_ms >= JUMP_MS_MIN:
            if not records:
                return by_ms
            last_free_from_ms = int((await transaction.fetch(LAST_FREE_FROM))[0][0])
            history = history.after_jump(now_ms, by_ms, last_free_from_ms)
            await write_clock(transaction, self.mark(now_ms), history)
        self._comparison.jump_ms(now_ms, history, asked_ms)
        self._is_compared = True
        self._note(now_ms, reading._replace(history=history))
        return 0

    def _note(self, now_ms: int, reading: ClockReading) -> None:
        self._stored_ms, history = max(self._stored_ms, reading.newest_ms), reading.history
        if now_ms >= self.newest_ms:
            self.newest_ms, self._newest_up_ms, self.history = now_ms, self._node.boot().up_ms, history


async def write_clock(transaction: Transaction, mark: ClockMark, history: ClockHistory) -> None:
    """Write the newest instant, what is known about it, and the clock's history."""
    cells = (history.jumped_at_ms, history.jumped_by_ms, history.jumps_ms, history.last_hold_ms, history.token_lead_ms)
    await transaction.fetch(WRITE_CLOCK, *mark_cells(mark), *cells)
