"""Pools connections to the server that can be written now, and runs transactions that cannot hang.

No session keeps state: no session settings, no session locks. Each transaction sets what it needs, so a pooler that
gives every transaction another server connection (PgBouncer in transaction mode) changes nothing. Statements stay
prepared only without a pooler, which announces another process id than that of the serving process.

Deadlines bound each transaction. In the server a statement, a wait for a lock and an idle moment each have a limit, so
a node that vanishes holds its rows for less than STATEMENT + IDLE seconds. In the node a transaction has
TRANSACTION_SECONDS_MAX; then its connection is terminated. The node never cancels: if a cancel arrives while COMMIT
waits for a standby, the commit becomes visible and is reported as done although no standby has it (LEASE-14).

A primary that lost its standby, or whose standby was promoted, still responds to SELECT. The node trusts what it reads
for CONFIRMED_SECONDS_MAX after it sent a commit that the server (and so its synchronous standby) then confirmed. After
that, a transaction that only reads must commit something too.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg

from ...ports.lock_store import StoreCounts
from ...rules.errors import STOPPING, StoreUnavailableError
from .faults import StoreWentBackError, is_server_lost, store_fault
from .hosts import CONNECT_SECONDS_MAX, NOT_REACHED, DatabaseSession, Hosts
from .schema_mark import SchemaGuard

CONNECTIONS_MAX: Final = 6
READS_MAX: Final = 3  # of them in transactions that only read, so that commits need not wait for reads
STATEMENT_SECONDS_MAX: Final = 2.0
LOCK_SECONDS_MAX: Final = 1.5
IDLE_SECONDS_MAX: Final = 2.0
TRANSACTION_SECONDS_MAX: Final = 4.0
CLOSE_SECONDS_MAX: Final = 2.0
CONFIRMED_SECONDS_MAX: Final = 1.0

NO_RESPONSE: Final = ("store_slow", f"the database did not respond within {TRANSACTION_SECONDS_MAX:g} s")
NOT_REPLICATED: Final = ("commit_in_doubt", "the database did not confirm that a commit is durable: try again")
OVERLOADED: Final = ("overloaded", "all connections to the database are in use: try again in a moment")

# Written only to the log: it locks nothing, so one such commit that hangs blocks no other.
_PROVE_WRITABLE: Final = "SELECT pg_logical_emit_message(true, 'volcano-locks', ''::text) IS NULL"

Row = Sequence[Any]


class Transaction:
    """One open transaction. `fetch` runs one statement with its values and returns plain rows."""

    def __init__(self, session: DatabaseSession, counts: StoreCounts) -> None:
        self._session: Final = session
        self._connection: Final = session.connection
        self._round_trips: Final = 1 if session.is_direct else 2  # behind a pooler each statement is prepared first
        self._counts: Final = counts
        self.keep = True  # if false at the end, the transaction is rolled back
        self.confirms = False  # whether a standby must confirm its commit

    async def fetch(self, sql: str, *values: object) -> list[Row]:
        self._counts.round_trips += self._round_trips
        rows: list[Row] = await self._connection.fetch(sql, *values)
        return rows

    async def run(self, script: str) -> None:
        """Any number of statements without values, as one message."""
        self._counts.round_trips += 1
        await self._connection.execute(script)

    async def prove_writable(self) -> None:
        """Write to the log, so that the commit shows that this server is the primary and has disk space."""
        await self.fetch(_PROVE_WRITABLE)
        self.confirms = True

    async def confirm_primary(self) -> None:
        """End a transaction that only read: commit a proof unless a recent commit was confirmed."""
        if asyncio.get_running_loop().time() < self._session.confirmed_at + CONFIRMED_SECONDS_MAX:
            self.keep = False
        else:
            await self.prove_writable()


@asynccontextmanager
async def slot(slots: asyncio.Semaphore) -> AsyncIterator[None]:
    """One of these slots; waits no longer than a transaction may take. Raises StoreUnavailableError."""
    try:
        async with asyncio.timeout(TRANSACTION_SECONDS_MAX):
            await slots.acquire()
    except TimeoutError:
        raise StoreUnavailableError(*OVERLOADED) from None
    try:
        yield
    finally:
        slots.release()


class ConnectionPool:
    """Up to CONNECTIONS_MAX connections. `transaction` is the only way to use one."""

    def __init__(self, url: str, counts: StoreCounts, guard: SchemaGuard) -> None:
        self.guard: Final = guard
        self.hosts: Final = Hosts(url, counts)
        self._counts: Final = counts
        self.reads: Final = asyncio.Semaphore(READS_MAX)
        """The slots of `read_transaction`."""
        self._slots: Final = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: list[DatabaseSession] = []
        self._busy: set[DatabaseSession] = set()
        self._generation = 0
        self._closed = False

    @asynccontextmanager
    async def transaction(
        self, *, durable: bool = True, seconds: float | None = None, statement_seconds: float | None = None
    ) -> AsyncIterator[Transaction]:
        """A transaction on a writable server, committed at the end; rolled back if the body raises or clears `keep`.

        `durable` means that the commit waits for the disk and for the synchronous standby. Raises StoreUnavailableError
        for faults of the database and the connection; other errors of the body pass through. After a
        StoreUnavailableError the commit may or may not have taken effect.
        """
        if self._closed:
            raise StoreUnavailableError(*STOPPING)
        async with slot(self._slots):
            session = await self._begin_on_session(_begin(durable, statement_seconds or STATEMENT_SECONDS_MAX))
            deadline = asyncio.get_running_loop().call_later(seconds or TRANSACTION_SECONDS_MAX, session.expire)
            try:
                transaction = Transaction(session, self._counts)
                yield transaction
                if transaction.keep:
                    committed_at = asyncio.get_running_loop().time()
                    await self._commit(session, deadline)
                    if transaction.confirms:
                        session.confirmed_at = committed_at
                else:
                    await self._execute(session, "ROLLBACK")
            except Exception as error:
                fault = self._fault(session, error)
                await self._roll_back(session, error)
                if fault is None:
                    raise
                raise fault from error
            except BaseException:
                if not session.is_hung:
                    session.terminate()
                raise
            finally:
                deadline.cancel()
                self._return(session)

    async def close(self) -> None:
        """Refuse new transactions, and close everything within CLOSE_SECONDS_MAX."""
        if self._closed:
            return
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                for _ in range(CONNECTIONS_MAX):
                    await self._slots.acquire()
        for session in self._busy:
            session.terminate()
        self.hosts.terminate_hung()
        self._drop_idle()

    def discard_all(self) -> None:
        """Stop using the connections that are open now; new ones may lead to another server."""
        self._generation += 1
        self._drop_idle()

    async def _begin_on_session(self, begin: str) -> DatabaseSession:
        """A session with an open transaction. An idle session that proves dead is replaced, once."""
        for _ in range(2):
            session = self._idle.pop() if self._idle else None
            if session is None or session.connection.is_closed():
                session = await self.hosts.connect(self._generation)
            self._busy.add(session)
            deadline = asyncio.get_running_loop().call_later(CONNECT_SECONDS_MAX, session.expire)
            try:
                await self._execute(session, begin)
            except Exception as error:
                fault = self._fault(session, error)
                session.terminate()
                self._return(session)
                if session.is_fresh or not is_server_lost(error):
                    raise (fault or store_fault(error)) from error
            except BaseException:
                session.terminate()
                self._return(session)
                raise
            else:
                session.is_fresh = False
                return session
            finally:
                deadline.cancel()
        raise StoreUnavailableError(*NOT_REACHED)

    async def _commit(self, session: DatabaseSession, deadline: asyncio.TimerHandle) -> None:
        """COMMIT. If it is late or its caller is cancelled, it is left to end by itself. Neither a cancel nor a cut
        would stop the server from waiting; each would only cost another of its connections.
        """
        remaining = deadline.when() - asyncio.get_running_loop().time()
        deadline.cancel()
        session.has_warned = False
        commit = asyncio.ensure_future(self._execute(session, "COMMIT"))
        try:
            await asyncio.wait([commit], timeout=remaining)
        except asyncio.CancelledError:
            self.hosts.leave_hung(session, commit)
            raise
        if not commit.done():
            self.hosts.leave_hung(session, commit)
            self.hosts.ask_last(session.host)
            self.discard_all()
            raise StoreUnavailableError(*NO_RESPONSE)
        if commit.result() != "COMMIT" or session.has_warned:
            session.terminate()
            raise StoreUnavailableError(*NOT_REPLICATED)

    async def _execute(self, session: DatabaseSession, command: str) -> str:
        self._counts.round_trips += 1
        tag: str = await session.connection.execute(command)
        return tag

    async def _roll_back(self, session: DatabaseSession, error: Exception) -> None:
        """Roll back so that the session can be reused. Terminate it if that fails, and discard all if the server is
        lost, or is an old primary that another one has replaced.
        """
        went_back = isinstance(error, StoreWentBackError) and self.hosts.are_several
        if went_back:
            self.hosts.ask_last(session.host)
        if went_back or is_server_lost(error):
            self.discard_all()
            session.terminate()
        if session.is_hung or session.connection.is_closed():
            return
        deadline = asyncio.get_running_loop().call_later(CONNECT_SECONDS_MAX, session.terminate)
        try:
            await self._execute(session, "ROLLBACK")
        except Exception:  # noqa: BLE001 - the server rolls back when the connection ends
            session.terminate()
        finally:
            deadline.cancel()

    def _fault(self, session: DatabaseSession, error: Exception) -> StoreUnavailableError | None:
        """The error for the caller; None if `error` is the body's own."""
        if session.is_expired:
            return StoreUnavailableError(*NO_RESPONSE)
        if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | asyncpg.InternalClientError | OSError):
            return store_fault(error)
        return None

    def _return(self, session: DatabaseSession) -> None:
        self._busy.discard(session)
        if session.is_hung:
            return
        if self._closed or session.generation != self._generation:
            session.terminate()
        if not session.connection.is_closed():
            self._idle.append(session)

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().terminate()


def _begin(durable: bool, statement_seconds: float) -> str:
    """One message that begins a transaction and sets everything that it needs, whatever the session's settings are.

    Plans use indexes only: a table without statistics would otherwise invite scans of all rows.
    """
    return (
        "BEGIN ISOLATION LEVEL READ COMMITTED;"
        f"SET LOCAL statement_timeout = {round(statement_seconds * 1_000)};"
        f"SET LOCAL lock_timeout = {round(LOCK_SECONDS_MAX * 1_000)};"
        f"SET LOCAL idle_in_transaction_session_timeout = {round(IDLE_SECONDS_MAX * 1_000)};"
        "SET LOCAL row_security = off;"  # a policy that hides rows causes an error, not a lock that seems free
        f"SET LOCAL synchronous_commit = {'on' if durable else 'off'};"
        "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; "
        "SET LOCAL jit = off"
    )
