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
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg

from ...errors import StoreUnavailableError
from ...store import StoreCounts
from .address import hosts_of
from .faults import is_elsewhere, store_fault

CONNECTIONS_MAX: Final = 6
CONNECT_SECONDS_MAX: Final = 2.0
SEARCH_SECONDS_MAX: Final = 5.0
STATEMENT_SECONDS_MAX: Final = 2.0
LOCK_SECONDS_MAX: Final = 1.5
IDLE_SECONDS_MAX: Final = 2.0
TRANSACTION_SECONDS_MAX: Final = 4.0
CLOSE_SECONDS_MAX: Final = 2.0
KEEPALIVE_SECONDS: Final = 2
STATEMENTS_MAX: Final = 100

NO_ANSWER: Final = ("store_slow", f"the database did not answer within {TRANSACTION_SECONDS_MAX:g} s")
NOT_WRITABLE: Final = ("no_writable_node", "no host in the store's URL can be written now: a writable one is sought")
NOT_REACHED: Final = ("unreachable", "the database cannot be reached: check the store's URL and that it runs")
NOT_REPLICATED: Final = ("commit_in_doubt", "the database did not confirm that a commit is safe: ask again")
STOPPED: Final = ("stopping", "the service is stopping: try again in a moment")

Row = Sequence[Any]


class Transaction:
    """One open transaction. `fetch` is one statement with its values; the rows come as plain sequences."""

    def __init__(self, link: "_Link", counts: StoreCounts) -> None:
        self._connection: Final = link.connection
        self._waits: Final = 1 if link.is_direct else 2  # else each statement is prepared first
        self._counts: Final = counts
        self.keep = True  # what is false at the end is rolled back

    async def fetch(self, sql: str, *values: object) -> list[Row]:
        self._counts.round_trips += self._waits
        rows: list[Row] = await self._connection.fetch(sql, *values)
        return rows

    async def run(self, script: str) -> None:
        """Any number of statements without values, as one message."""
        self._counts.round_trips += 1
        await self._connection.execute(script)


class _Link:
    """A connection and what happened to it."""

    def __init__(self, connection: "asyncpg.Connection", generation: int, *, is_direct: bool) -> None:
        self.connection: Final = connection
        self.is_direct: Final = is_direct
        self.generation: Final = generation
        self.is_late = False
        self.is_warned = False
        self.is_fresh = True
        connection.add_log_listener(self._told)
        _keep_alive(connection)

    def cut(self) -> None:
        self.connection.terminate()

    def late(self) -> None:
        self.is_late = True
        self.connection.terminate()

    def _told(self, _connection: object, message: "asyncpg.PostgresLogMessage") -> None:
        if message.severity_en == "WARNING":
            self.is_warned = True


class Connections:
    """Up to CONNECTIONS_MAX connections. `transaction` is the only way to use one."""

    def __init__(self, url: str, counts: StoreCounts) -> None:
        self._hosts: Final = hosts_of(url)
        self._counts: Final = counts
        self._slots: Final = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: list[_Link] = []
        self._busy: set[_Link] = set()
        self._generation = 0
        self._host = 0
        self._pooled: Final[set[str]] = set()
        self._closed = False

    @asynccontextmanager
    async def transaction(
        self, *, durable: bool = True, seconds: float = TRANSACTION_SECONDS_MAX, statement_seconds: float | None = None
    ) -> AsyncIterator[Transaction]:
        """A transaction on a writable server, committed at the end, rolled back where the body raises or says so.

        `durable` means that the commit is waited for on disk and on the synchronous standby. Raises
        StoreUnavailableError for whatever the database or the way to it does; what else the body raises stays as it
        is. After a StoreUnavailableError it is unknown whether the commit took place.
        """
        if self._closed:
            raise StoreUnavailableError(*STOPPED)
        async with self._slots:
            link = await self._begun(_begin(durable, statement_seconds or STATEMENT_SECONDS_MAX))
            deadline = asyncio.get_running_loop().call_later(seconds, link.late)
            try:
                transaction = Transaction(link, self._counts)
                yield transaction
                await self._end(link, "COMMIT" if transaction.keep else "ROLLBACK")
            except Exception as error:
                fault = self._fault(link, error)
                await self._undo(link, error)
                if fault is None:
                    raise
                raise fault from error
            except BaseException:
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
        self._drop_idle()

    def look_elsewhere(self) -> None:
        """Use no connection again that is open now; the next ones may be to another server."""
        self._generation += 1
        self._drop_idle()

    async def _begun(self, begin: str) -> _Link:
        """A connection with a transaction begun on it. One that lay idle and turns out dead is replaced, once."""
        for _ in range(2):
            link = self._idle.pop() if self._idle else None
            if link is None or link.connection.is_closed():
                link = await self._connected()
            self._busy.add(link)
            deadline = asyncio.get_running_loop().call_later(CONNECT_SECONDS_MAX, link.late)
            try:
                self._counts.round_trips += 1
                link.is_warned = False
                await link.connection.execute(begin)
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

    async def _end(self, link: _Link, word: str) -> None:
        """COMMIT or ROLLBACK. A caller that gives up leaves the commit to itself, uncancelled."""
        self._counts.round_trips += 1
        ending = asyncio.ensure_future(link.connection.execute(word))
        try:
            tag = await asyncio.shield(ending)
        except asyncio.CancelledError:
            ending.add_done_callback(_heard)
            raise
        if word == "COMMIT" and (tag != "COMMIT" or link.is_warned):
            link.cut()
            raise StoreUnavailableError(*NOT_REPLICATED)

    async def _undo(self, link: _Link, error: Exception) -> None:
        """Roll back, so that the connection is of use again; cut it where it is not, and its like with it."""
        if is_elsewhere(error):
            self.look_elsewhere()
            link.cut()
        if link.connection.is_closed():
            return
        deadline = asyncio.get_running_loop().call_later(CONNECT_SECONDS_MAX, link.cut)
        try:
            self._counts.round_trips += 1
            await link.connection.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - whatever it is, the server undoes what is open when the connection ends
            link.cut()
        finally:
            deadline.cancel()

    def _fault(self, link: _Link, error: Exception) -> StoreUnavailableError | None:
        """What the caller hears; None where the error is the body's own."""
        if link.is_late:
            return StoreUnavailableError(*NO_ANSWER)
        if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | asyncpg.InternalClientError | OSError):
            return store_fault(error)
        return None

    def _put_back(self, link: _Link) -> None:
        self._busy.discard(link)
        if self._closed or link.generation != self._generation:
            link.cut()
        if not link.connection.is_closed():
            self._idle.append(link)

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().cut()

    async def _connected(self) -> _Link:
        """A connection to the first host that can be written, beginning with the one that could last."""
        told = NOT_REACHED
        cause: Exception | None = None
        try:
            async with asyncio.timeout(SEARCH_SECONDS_MAX):
                for _ in self._hosts:
                    try:
                        return await self._connected_to(self._hosts[self._host])
                    except ValueError:
                        raise _misspelt() from None  # its words may repeat the URL
                    except asyncpg.TargetServerAttributeNotMatched as error:
                        told, cause = NOT_WRITABLE, error
                    except asyncpg.PostgresError as error:
                        fault = store_fault(error)
                        told, cause = (fault.cause_code, fault.message), error
                    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                        cause = error
                    self._host = (self._host + 1) % len(self._hosts)
        except TimeoutError as error:
            cause = error
        raise StoreUnavailableError(*told) from cause

    async def _connected_to(self, host: str) -> _Link:
        is_direct = host not in self._pooled
        connection = await self._opened(host, named_statements=is_direct)
        if is_direct and not await _is_direct(connection):
            connection.terminate()
            self._pooled.add(host)
            is_direct = False
            connection = await self._opened(host, named_statements=False)
        return _Link(connection, self._generation, is_direct=is_direct)

    async def _opened(self, host: str, *, named_statements: bool) -> "asyncpg.Connection":
        self._counts.connects += 1
        return await asyncpg.connect(
            host,
            timeout=CONNECT_SECONDS_MAX,
            statement_cache_size=STATEMENTS_MAX if named_statements else 0,
            target_session_attrs="read-write",
            server_settings={"application_name": "volcano-locks"},
        )


async def _is_direct(connection: "asyncpg.Connection") -> bool:
    """Whether the process that greeted us is the one that serves us: a pooler makes up a process of its own."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            await connection.execute("BEGIN READ ONLY")
            statement = await connection.prepare("SELECT pg_backend_pid()", name="")
            serving = await statement.fetchval()
            await connection.execute("ROLLBACK")
    except BaseException:
        connection.terminate()
        raise
    return bool(serving == connection.get_server_pid())


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


def _keep_alive(connection: "asyncpg.Connection") -> None:
    """Notice a server that vanished also while nothing is asked of it. Where the driver hides its socket, the
    deadlines notice it later.
    """
    transport = getattr(connection, "_transport", None)
    link = transport.get_extra_info("socket") if transport is not None else None
    if link is None or link.family not in (socket.AF_INET, socket.AF_INET6):
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", round(TRANSACTION_SECONDS_MAX * 1_000)),
    ):
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _misspelt() -> ValueError:
    return ValueError("store must be postgresql://user:password@host:port/database; got one that cannot be read so")


def _heard(ending: "asyncio.Future[str]") -> None:
    """Nobody waits for it any more; its failure is no news."""
    if not ending.cancelled():
        ending.exception()
