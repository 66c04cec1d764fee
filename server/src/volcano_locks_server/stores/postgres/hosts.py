"""Finds the server that can be written now.

Each host of the URL is tried by itself, beginning with the last one that was writable. A host on which a commit hangs
is tried last: its synchronous standby is gone or was promoted, or its disk hangs. Once HUNG_MAX commits hang in one
server, the node starts no more there. Their connections are left to end by themselves, and further ones would only use
up the database's connections. A server is identified by its start time, because a host name may change its server.
"""

import asyncio
import math
import socket
from typing import Final

import asyncpg

from ...ports.lock_store import StoreCounts
from ...rules.errors import StoreUnavailableError
from ..connection_causes import cause_of
from .address import shown_host, shown_user, split_hosts
from .faults import store_fault

CONNECT_SECONDS_MAX: Final = 2.0
SEARCH_SECONDS_MAX: Final = 5.0
KEEPALIVE_SECONDS: Final = 2
UNANSWERED_SECONDS_MAX: Final = 4
STATEMENTS_MAX: Final = 100
HUNG_MAX: Final = 4
HUNG_RETRY_SECONDS: Final = 1.0

NOT_WRITABLE: Final = (
    "no_writable_node",
    "no host in the store's URL is writable (standbys, or default_transaction_read_only): the service keeps looking",
)
NOT_REACHED: Final = ("unreachable", "the database cannot be reached: check the store's URL and that it runs")
REFUSED_USER: Final = "28"  # the class of SQLSTATE
HANGS: Final = ("commits_hang", "the database does not finish commits: check its synchronous standby and its disk")


class DatabaseSession:
    """A connection and its history."""

    def __init__(
        self, connection: "asyncpg.Connection", host: str, server: object, generation: int, *, is_direct: bool
    ) -> None:
        self.connection: Final = connection
        self.host: Final = host
        self.server: Final = server
        self.generation: Final = generation
        self.is_direct: Final = is_direct
        self.is_expired = False
        self.has_warned = False
        self.is_fresh = True
        self.is_hung = False
        self.confirmed_at = -math.inf  # loop time at which the latest confirmed commit was sent
        connection.add_log_listener(self._on_log_message)
        _keep_alive(connection)

    def terminate(self) -> None:
        """Close the connection at once, without notifying the server."""
        self.connection.terminate()

    def expire(self) -> None:
        """Terminate the connection at its deadline."""
        self.is_expired = True
        self.terminate()

    def _on_log_message(self, _connection: object, message: "asyncpg.PostgresLogMessage") -> None:
        if message.severity_en == "WARNING":
            self.has_warned = True


class Hosts:
    """The hosts of one URL."""

    def __init__(self, url: str, counts: StoreCounts) -> None:
        self._hosts: Final = split_hosts(url)
        self._counts: Final = counts
        self._last = 0
        self._first = 0
        self.pooled: Final[set[str]] = set()
        self._hung: Final[dict[object, set[DatabaseSession]]] = {}  # by server
        self._retry_at: Final[dict[str, float]] = {}  # by host, while its server hangs

    @property
    def last(self) -> str:
        """The URL of the host that was last writable."""
        return self._hosts[self._last]

    @property
    def are_several(self) -> bool:
        return len(self._hosts) > 1

    def leave_hung(self, session: DatabaseSession, commit: "asyncio.Future[str]") -> None:
        """Let a commit end by itself, then close its connection."""
        session.is_hung = True
        hung = self._hung.setdefault(session.server, set())
        hung.add(session)

        def ended(_commit: "asyncio.Future[str]") -> None:
            if not commit.cancelled():
                commit.exception()  # mark as retrieved: no caller awaits it
            hung.discard(session)
            if not hung:
                self._hung.pop(session.server, None)
            self._retry_at.clear()
            session.terminate()

        commit.add_done_callback(ended)

    def ask_last(self, host: str) -> None:
        """Try the other hosts first: this one considers itself writable, but does not finish commits."""
        if self.last == host:
            self._first = (self._last + 1) % len(self._hosts)

    def terminate_hung(self) -> None:
        """Close the connections whose commits hang; the server keeps waiting by itself."""
        for sessions in list(self._hung.values()):
            for session in list(sessions):
                session.terminate()

    async def connect(self, generation: int) -> DatabaseSession:
        """A session on a writable host. Raises StoreUnavailableError, and ValueError for the URL."""
        code_and_message = NOT_REACHED
        cause: Exception | None = None
        causes: list[str] = []
        first = self._first
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SEARCH_SECONDS_MAX):
                for index in range(first, first + len(self._hosts)):
                    host = self._hosts[index % len(self._hosts)]
                    if loop.time() < self._retry_at.get(host, 0.0):
                        code_and_message = HANGS
                        continue
                    try:
                        session = await self._connect_to(host, generation)
                    except ValueError:
                        raise _invalid_url() from None  # its message may repeat the URL
                    except asyncpg.TargetServerAttributeNotMatched as error:
                        code_and_message, cause = NOT_WRITABLE, error
                    except asyncpg.PostgresError as error:
                        code_and_message, cause = _refusal(host, error), error
                    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                        causes.append(f"{shown_host(host)}: {cause_of(error)}")
                        cause = error
                    else:
                        if len(self._hung.get(session.server, ())) >= HUNG_MAX:
                            session.terminate()
                            self._retry_at[host] = loop.time() + HUNG_RETRY_SECONDS
                            code_and_message = HANGS
                            continue
                        self._last = self._first = index % len(self._hosts)
                        return session
        except TimeoutError as error:
            cause = error
        if code_and_message == NOT_REACHED and causes:
            what = f"the database cannot be reached ({'; '.join(causes)}): check the store's URL and that it runs"
            code_and_message = NOT_REACHED[0], what
        raise StoreUnavailableError(*code_and_message) from cause

    async def _connect_to(self, host: str, generation: int) -> DatabaseSession:
        is_direct = host not in self.pooled
        connection = await self._open(host, named_statements=is_direct)
        process, server = await _backend(connection)
        if is_direct and process != connection.get_server_pid():
            connection.terminate()
            self.pooled.add(host)
            is_direct = False
            connection = await self._open(host, named_statements=False)
        return DatabaseSession(connection, host, server, generation, is_direct=is_direct)

    async def _open(self, host: str, *, named_statements: bool) -> "asyncpg.Connection":
        self._counts.connects += 1
        return await asyncpg.connect(
            host,
            timeout=CONNECT_SECONDS_MAX,
            statement_cache_size=STATEMENTS_MAX if named_statements else 0,
            target_session_attrs="read-write",
            server_settings={"application_name": "volcano-locks"},
        )


async def _backend(connection: "asyncpg.Connection") -> tuple[int, object]:
    """The serving process, and when its server started. A pooler announces an invented process id."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            await connection.execute("BEGIN READ ONLY")
            statement = await connection.prepare("SELECT pg_backend_pid(), pg_postmaster_start_time()", name="")
            row = await statement.fetchrow()
            await connection.execute("ROLLBACK")
    except BaseException:
        connection.terminate()
        raise
    assert row is not None
    return int(row[0]), row[1]


def _keep_alive(connection: "asyncpg.Connection") -> None:
    """Detect a server that vanished, even on an idle connection. If the driver hides its socket, the deadlines detect
    it later.
    """
    transport = getattr(connection, "_transport", None)
    raw_socket = transport.get_extra_info("socket") if transport is not None else None
    if raw_socket is None or raw_socket.family not in (socket.AF_INET, socket.AF_INET6):
        return
    raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", UNANSWERED_SECONDS_MAX * 1_000),
    ):
        if hasattr(socket, name):
            raw_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _invalid_url() -> ValueError:
    return ValueError("store must be postgresql://user:password@host:port/database; got one of another form")


def _refusal(host: str, error: asyncpg.PostgresError) -> tuple[str, str]:
    """The cause code and message of a server that refused the connection. The message names the host."""
    fault = store_fault(error)
    if not error.sqlstate.startswith(REFUSED_USER):
        return fault.cause_code, f"{shown_host(host)}: {fault.message}"
    named = shown_user(host)
    user = f"the user {named}" if named else "this user"
    return fault.cause_code, f"{shown_host(host)} refused {user}: check user, password and pg_hba.conf"
