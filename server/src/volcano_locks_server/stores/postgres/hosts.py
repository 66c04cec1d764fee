"""The way to the server that can be written now.

Each host of the URL is asked by itself, beginning with the last one that could be written. One on which a commit hangs
(its synchronous standby is gone or was promoted, or its disk hangs) is asked last. Once HUNG_MAX of them wait in one
server no more are begun there: their connections are left to end by themselves, and more would only use up the
database's. A server is known by the instant it was started at, since a host's name may lead to another one meanwhile.
"""

import asyncio
import math
import socket
from typing import Final

import asyncpg

from ...ports.lock_store import StoreCounts
from ...rules.errors import StoreUnavailableError
from .address import hosts_of
from .faults import store_fault

CONNECT_SECONDS_MAX: Final = 2.0
SEARCH_SECONDS_MAX: Final = 5.0
KEEPALIVE_SECONDS: Final = 2
UNANSWERED_SECONDS_MAX: Final = 4
STATEMENTS_MAX: Final = 100
HUNG_MAX: Final = 4
HUNG_LOOK_SECONDS: Final = 1.0

NOT_WRITABLE: Final = ("no_writable_node", "no host in the store's URL can be written now: a writable one is sought")
NOT_REACHED: Final = ("unreachable", "the database cannot be reached: check the store's URL and that it runs")
HANGS: Final = ("commits_hang", "the database does not finish commits: see its synchronous standby and its disk")


class Link:
    """A connection and what happened to it."""

    def __init__(
        self, connection: "asyncpg.Connection", host: str, server: object, generation: int, *, is_direct: bool
    ) -> None:
        self.connection: Final = connection
        self.host: Final = host
        self.server: Final = server
        self.generation: Final = generation
        self.is_direct: Final = is_direct
        self.is_late = False
        self.is_warned = False
        self.is_fresh = True
        self.is_hung = False
        self.confirmed_at = -math.inf  # by the loop's time: when a commit was asked for that was then done
        connection.add_log_listener(self._told)
        _keep_alive(connection)

    def cut(self) -> None:
        """End the connection at once, without a word to the server."""
        self.connection.terminate()

    def late(self) -> None:
        """Its time is over."""
        self.is_late = True
        self.cut()

    def _told(self, _connection: object, message: "asyncpg.PostgresLogMessage") -> None:
        if message.severity_en == "WARNING":
            self.is_warned = True


class Hosts:
    """The hosts of one URL."""

    def __init__(self, url: str, counts: StoreCounts) -> None:
        self._hosts: Final = hosts_of(url)
        self._counts: Final = counts
        self._last = 0
        self._first_asked = 0
        self.pooled: Final[set[str]] = set()
        self._hung: Final[dict[object, set[Link]]] = {}  # by server
        self._look_again_at: Final[dict[str, float]] = {}  # by host: not before then, for its server hangs

    @property
    def first(self) -> str:
        """The URL of the first host alone."""
        return self._hosts[0]

    @property
    def last(self) -> str:
        """The URL of the host that was last found to be writable."""
        return self._hosts[self._last]

    def leave_hanging(self, link: Link, ending: "asyncio.Future[str]") -> None:
        """Let a commit end by itself, whenever that is; then its connection ends too."""
        link.is_hung = True
        hung = self._hung.setdefault(link.server, set())
        hung.add(link)

        def ended(_ending: "asyncio.Future[str]") -> None:
            if not _ending.cancelled():
                _ending.exception()  # nobody waits for it any more
            hung.discard(link)
            if not hung:
                self._hung.pop(link.server, None)
            self._look_again_at.clear()
            link.cut()

        ending.add_done_callback(ended)

    def turn_from(self, host: str) -> None:
        """Ask the others first: this one believes that it can be written, but does not finish what is."""
        if self.last == host:
            self._first_asked = (self._last + 1) % len(self._hosts)

    def cut_hanging(self) -> None:
        """End the connections whose commits hang: the server goes on waiting by itself."""
        for links in list(self._hung.values()):
            for link in list(links):
                link.cut()

    async def connected(self, generation: int) -> Link:
        """A connection to a host that can be written. Raises StoreUnavailableError, and ValueError for the URL."""
        told = NOT_REACHED
        cause: Exception | None = None
        first = self._first_asked
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SEARCH_SECONDS_MAX):
                for place in range(first, first + len(self._hosts)):
                    host = self._hosts[place % len(self._hosts)]
                    if loop.time() < self._look_again_at.get(host, 0.0):
                        told = HANGS
                        continue
                    try:
                        link = await self._connected_to(host, generation)
                    except ValueError:
                        raise _misspelt() from None  # its words may repeat the URL
                    except asyncpg.TargetServerAttributeNotMatched as error:
                        told, cause = NOT_WRITABLE, error
                    except asyncpg.PostgresError as error:
                        fault = store_fault(error)
                        told, cause = (fault.cause_code, fault.message), error
                    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                        cause = error
                    else:
                        if len(self._hung.get(link.server, ())) >= HUNG_MAX:
                            link.cut()
                            self._look_again_at[host] = loop.time() + HUNG_LOOK_SECONDS
                            told = HANGS
                            continue
                        self._last = self._first_asked = place % len(self._hosts)
                        return link
        except TimeoutError as error:
            cause = error
        raise StoreUnavailableError(*told) from cause

    async def _connected_to(self, host: str, generation: int) -> Link:
        is_direct = host not in self.pooled
        connection = await self._opened(host, named_statements=is_direct)
        process, server = await _serving(connection)
        if is_direct and process != connection.get_server_pid():
            connection.terminate()
            self.pooled.add(host)
            is_direct = False
            connection = await self._opened(host, named_statements=False)
        return Link(connection, host, server, generation, is_direct=is_direct)

    async def _opened(self, host: str, *, named_statements: bool) -> "asyncpg.Connection":
        self._counts.connects += 1
        return await asyncpg.connect(
            host,
            timeout=CONNECT_SECONDS_MAX,
            statement_cache_size=STATEMENTS_MAX if named_statements else 0,
            target_session_attrs="read-write",
            server_settings={"application_name": "volcano-locks"},
        )


async def _serving(connection: "asyncpg.Connection") -> tuple[int, object]:
    """The process that serves us, and when its server was started. A pooler greets with a process that it makes up."""
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
        ("TCP_USER_TIMEOUT", UNANSWERED_SECONDS_MAX * 1_000),
    ):
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _misspelt() -> ValueError:
    return ValueError("store must be postgresql://user:password@host:port/database; got one that cannot be read so")
