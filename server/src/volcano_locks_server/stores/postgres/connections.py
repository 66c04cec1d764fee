"""Connections to whichever server can be written now, and transactions that cannot hang.

No connection has a state that counts: no session settings and no session locks. Everything is said inside the
transaction that needs it, so a pooler that gives each transaction another server connection (PgBouncer in transaction
mode) changes nothing. Statements stay prepared only where the session is seen to be ours: where the process that
greeted us is the one that serves us.

Three deadlines surround each transaction. The server's: a statement, a wait for a lock, and an idle moment inside a
transaction each end by themselves, so a node that vanishes at the worst moment holds its rows for less than
STATEMENT + IDLE seconds. Ours: a transaction that is not through after TRANSACTION_SECONDS_MAX has its connection cut.
It is cut, never cancelled: a cancel that arrives while COMMIT waits for a standby would make the commit visible and
call it done though no standby has it (LEASE-14).

A primary that is cut off from its standby, or whose standby was promoted, still answers every SELECT. What it says is
believed for CONFIRMED_SECONDS_MAX after it was asked for a commit that it then called done (and so its synchronous
standby did); after that, whatever only reads has to commit something too.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg

from ...ports.lock_store import StoreCounts
from ...rules.errors import StoreUnavailableError
from .faults import is_elsewhere, store_fault
from .hosts import CONNECT_SECONDS_MAX, NOT_REACHED, Hosts, Link

CONNECTIONS_MAX: Final = 6
STATEMENT_SECONDS_MAX: Final = 2.0
LOCK_SECONDS_MAX: Final = 1.5
IDLE_SECONDS_MAX: Final = 2.0
TRANSACTION_SECONDS_MAX: Final = 4.0
CLOSE_SECONDS_MAX: Final = 2.0
CONFIRMED_SECONDS_MAX: Final = 1.0

NO_ANSWER: Final = ("store_slow", f"the database did not answer within {TRANSACTION_SECONDS_MAX:g} s")
NOT_REPLICATED: Final = ("commit_in_doubt", "the database did not confirm that a commit is safe: ask again")
OVERLOADED: Final = ("overloaded", "all connections to the database are in use: try again in a moment")
STOPPED: Final = ("stopping", "the service is stopping: try again in a moment")

# Written to the log alone: it locks nothing, so that one such commit which hangs holds up no other.
_PROVE: Final = "SELECT pg_logical_emit_message(true, 'volcano-locks', ''::text) IS NULL"

Row = Sequence[Any]


class Transaction:
    """One open transaction. `fetch` is one statement with its values; the rows come as plain sequences."""

    def __init__(self, link: Link, counts: StoreCounts) -> None:
        self._link: Final = link
        self._connection: Final = link.connection
        self._waits: Final = 1 if link.is_direct else 2  # else each statement is prepared first
        self._counts: Final = counts
        self.keep = True  # what is false at the end is rolled back
        self.proves = False  # whether its commit is one that a standby has to confirm

    async def fetch(self, sql: str, *values: object) -> list[Row]:
        self._counts.round_trips += self._waits
        rows: list[Row] = await self._connection.fetch(sql, *values)
        return rows

    async def run(self, script: str) -> None:
        """Any number of statements without values, as one message."""
        self._counts.round_trips += 1
        await self._connection.execute(script)

    async def prove(self) -> None:
        """Write to the log, so that the commit shows this server to be the primary and to have room."""
        await self.fetch(_PROVE)
        self.proves = True

    async def vouch(self) -> None:
        """Say at the end of a transaction that only read: it commits what proves it, where nothing did lately."""
        if asyncio.get_running_loop().time() < self._link.confirmed_at + CONFIRMED_SECONDS_MAX:
            self.keep = False
        else:
            await self.prove()


class Connections:
    """Up to CONNECTIONS_MAX connections. `transaction` is the only way to use one."""

    def __init__(self, url: str, counts: StoreCounts) -> None:
        self.hosts: Final = Hosts(url, counts)
        self._counts: Final = counts
        self._slots: Final = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: list[Link] = []
        self._busy: set[Link] = set()
        self._generation = 0
        self._closed = False

    @asynccontextmanager
    async def transaction(
        self, *, durable: bool = True, seconds: float | None = None, statement_seconds: float | None = None
    ) -> AsyncIterator[Transaction]:
        """A transaction on a writable server, committed at the end, rolled back where the body raises or says so.

        `durable` means that the commit is waited for on disk and on the synchronous standby. Raises
        StoreUnavailableError for whatever the database or the way to it does; what else the body raises stays as it
        is. After a StoreUnavailableError it is unknown whether the commit took place.
        """
        if self._closed:
            raise StoreUnavailableError(*STOPPED)
        async with self._slot():
            link = await self._begun(_begin(durable, statement_seconds or STATEMENT_SECONDS_MAX))
            deadline = asyncio.get_running_loop().call_later(seconds or TRANSACTION_SECONDS_MAX, link.late)
            try:
                transaction = Transaction(link, self._counts)
                yield transaction
                if transaction.keep:
                    asked_at = asyncio.get_running_loop().time()
                    await self._commit(link, deadline)
                    if transaction.proves:
                        link.confirmed_at = asked_at
                else:
                    await self._counted(link, "ROLLBACK")
            except Exception as error:
                fault = self._fault(link, error)
                await self._undo(link, error)
                if fault is None:
                    raise
                raise fault from error
            except BaseException:
                if not link.is_hung:
                    link.cut()
                raise
            finally:
                deadline.cancel()
                self._put_back(link)

    async def close(self) -> None:
        """Refuse what comes later, and let go of everything within CLOSE_SECONDS_MAX."""
        if self._closed:
            return
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                for _ in range(CONNECTIONS_MAX):
                    await self._slots.acquire()
        for link in self._busy:
            link.cut()
        self.hosts.cut_hanging()
        self._drop_idle()

    def look_elsewhere(self) -> None:
        """Use no connection again that is open now; the next ones may be to another server."""
        self._generation += 1
        self._drop_idle()

    async def _begun(self, begin: str) -> Link:
        """A connection with a transaction begun on it. One that lay idle and turns out dead is replaced, once."""
        for _ in range(2):
            link = self._idle.pop() if self._idle else None
            if link is None or link.connection.is_closed():
                link = await self.hosts.connected(self._generation)
            self._busy.add(link)
            deadline = asyncio.get_running_loop().call_later(CONNECT_SECONDS_MAX, link.late)
            try:
                await self._counted(link, begin)
            except Exception as error:
                fault = self._fault(link, error)
                link.cut()
                self._put_back(link)
                if link.is_fresh or not is_elsewhere(error):
                    raise (fault or store_fault(error)) from error
            except BaseException:
                link.cut()
                self._put_back(link)
                raise
            else:
                link.is_fresh = False
                return link
            finally:
                deadline.cancel()
        raise StoreUnavailableError(*NOT_REACHED)

    async def _commit(self, link: Link, deadline: asyncio.TimerHandle) -> None:
        """COMMIT. One that is late, or whose caller gives up, is left to itself: neither cancelled nor cut, for the
        server would go on waiting all the same, one more of its connections used up.
        """
        left = deadline.when() - asyncio.get_running_loop().time()
        deadline.cancel()
        link.is_warned = False
        ending = asyncio.ensure_future(self._counted(link, "COMMIT"))
        try:
            await asyncio.wait([ending], timeout=left)
        except asyncio.CancelledError:
            self.hosts.leave_hanging(link, ending)
            raise
        if not ending.done():
            self.hosts.leave_hanging(link, ending)
            self.hosts.turn_from(link.host)
            self.look_elsewhere()
            raise StoreUnavailableError(*NO_ANSWER)
        if ending.result() != "COMMIT" or link.is_warned:
            link.cut()
            raise StoreUnavailableError(*NOT_REPLICATED)

    async def _counted(self, link: Link, word: str) -> str:
        self._counts.round_trips += 1
        tag: str = await link.connection.execute(word)
        return tag

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """The right to one of the connections, waited for no longer than a transaction may take."""
        try:
            async with asyncio.timeout(TRANSACTION_SECONDS_MAX):
                await self._slots.acquire()
        except TimeoutError:
            raise StoreUnavailableError(*OVERLOADED) from None
        try:
            yield
        finally:
            self._slots.release()

    async def _undo(self, link: Link, error: Exception) -> None:
        """Roll back, so that the connection is of use again; cut it where it is not, and its like with it."""
        if is_elsewhere(error):
            self.look_elsewhere()
            link.cut()
        if link.is_hung or link.connection.is_closed():
            return
        deadline = asyncio.get_running_loop().call_later(CONNECT_SECONDS_MAX, link.cut)
        try:
            await self._counted(link, "ROLLBACK")
        except Exception:  # noqa: BLE001 - whatever it is, the server undoes what is open when the connection ends
            link.cut()
        finally:
            deadline.cancel()

    def _fault(self, link: Link, error: Exception) -> StoreUnavailableError | None:
        """What the caller hears; None where the error is the body's own."""
        if link.is_late:
            return StoreUnavailableError(*NO_ANSWER)
        if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | asyncpg.InternalClientError | OSError):
            return store_fault(error)
        return None

    def _put_back(self, link: Link) -> None:
        self._busy.discard(link)
        if link.is_hung:
            return
        if self._closed or link.generation != self._generation:
            link.cut()
        if not link.connection.is_closed():
            self._idle.append(link)

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().cut()


def _begin(durable: bool, statement_seconds: float) -> str:
    """One message that begins a transaction and says all that holds in it, whatever the session's settings are.

    Plans are kept to the indexes: tables that no statistics know of yet would invite walks through all of their rows.
    """
    return (
        "BEGIN ISOLATION LEVEL READ COMMITTED;"
        f"SET LOCAL statement_timeout = {round(statement_seconds * 1_000)};"
        f"SET LOCAL lock_timeout = {round(LOCK_SECONDS_MAX * 1_000)};"
        f"SET LOCAL idle_in_transaction_session_timeout = {round(IDLE_SECONDS_MAX * 1_000)};"
        f"SET LOCAL synchronous_commit = {'on' if durable else 'off'};"
        "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; "
        "SET LOCAL jit = off"
    )
