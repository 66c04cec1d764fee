"""Limits on all connections of one listener: how many may be open, and how long each may keep the server waiting.

A connection counts from its accept, during its TLS handshake too. When the limit is reached, a new connection displaces
others: first TLS handshakes that take unusually long, then the longest idle connections, then the other handshakes. A
connection with a request in flight is never displaced (HTTP-24). At the limit of one address, only connections of that
address are displaced (HTTP-29).

At most UNREAD_MAX connections may leave their responses unread: each has filled the system's buffers, about 200 KB of
kernel memory. Past it the longest unread one is closed, those without an accepted service key first. Once all buffers
together reach the system's limit (`tcp_mem`), the system reports every connection as writable and takes no bytes, and
the event loop does nothing else.

One sweep over all connections each SWEEP_SECONDS replaces a timer for each request.
"""

import asyncio
import contextlib
import heapq
import itertools
import resource
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final, Protocol

from ..client_networks import network_of

CONNECTIONS_MAX: Final = 10_000
FILES_RESERVED: Final = 256  # for the store, and for displaced connections, which close some turns later
UNREAD_MAX: Final = 500
DISPLACED_PART: Final = 16
HANDSHAKE_SECONDS_MAX: Final = 10.0
HANDSHAKE_SECONDS_USUAL: Final = 1.0  # a client that takes longer is slow, far away or hostile
SWEEP_SECONDS: Final = 1.0
SEARCH_EVERY_SECONDS: Final = 0.05  # after a search that displaced nothing: each one visits all connections


class LimitedConnection(Protocol):
    """What the limits need from a connection whose transport is ready."""

    transport: asyncio.Transport
    waiting_since: float

    @property
    def is_known(self) -> bool:
        """Whether its last request had an accepted service key."""
        ...

    def is_idle(self) -> bool: ...
    def close_if_overdue(self, now: float) -> None: ...
    def shutdown(self) -> None: ...


class UnfinishedHandshake(Protocol):
    """What the limits need from a connection whose TLS handshake is not complete."""

    began_at: float

    def abort(self) -> None: ...


class ConnectionLimits:
    """The connections of one listener, and their limits: `limit` in all, `per_address` of one address (0: no limit).

    `is_exempt` is whether an address has no limit of its own.

    The acceptor calls `admits` and `accepted` for each connection. The connection calls `add` when its transport is
    ready, after the handshake, and `remove` when it is lost.
    """

    def __init__(
        self,
        *,
        limit: int | None = None,
        per_address: int = 0,
        is_exempt: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        self.limit = limit if limit is not None else _limit()
        self._per_address: Final = per_address
        self._is_exempt: Final = is_exempt
        self._by_peer: Final[dict[str, set[LimitedConnection]]] = {}
        self._peers: Final[dict[LimitedConnection, str]] = {}
        self.open: Final[set[LimitedConnection]] = set()
        self._starting: Final[dict[LimitedConnection, UnfinishedHandshake | None]] = {}  # None: no TLS
        self._unread: Final[dict[LimitedConnection, None]] = {}  # the longest unread first
        self._next_search_at = 0.0
        self._next_sweep: asyncio.TimerHandle | None = None
        self._all_closed: Final = asyncio.Event()

    @property
    def count(self) -> int:
        """The number of connections, those in their handshake included."""
        return len(self.open) + len(self._starting)

    def admits(self, address: str) -> bool:
        """Whether one more connection from this address may be accepted. At a limit, closes others to make room."""
        now = asyncio.get_running_loop().time()
        if self._per_address and not self._is_exempt(address):
            of_peer = self._by_peer.get(network_of(address), ())
            if len(of_peer) >= self._per_address and not self._displace(of_peer, 1, now):
                return False
        if self.count < self.limit:
            return True
        if now < self._next_search_at:
            return False
        made_room = self._displace(
            itertools.chain(self._starting, self.open), max(1, self.limit // DISPLACED_PART), now
        )
        if not made_room:
            self._next_search_at = now + SEARCH_EVERY_SECONDS
        return made_room

    def accepted(
        self, connection: LimitedConnection, address: str, handshake: UnfinishedHandshake | None = None
    ) -> None:
        """Count a connection from this address, whose transport is not ready yet."""
        self._starting[connection] = handshake
        if self._per_address and not self._is_exempt(address):
            self._peers[connection] = peer = network_of(address)
            self._by_peer.setdefault(peer, set()).add(connection)

    def add(self, connection: LimitedConnection) -> None:
        """The connection's transport is ready."""
        self._starting.pop(connection, None)
        self.open.add(connection)
        self._all_closed.clear()

    def unread(self, connection: LimitedConnection) -> None:
        """The client does not read, for now."""
        self._unread[connection] = None
        if len(self._unread) > UNREAD_MAX:
            self._abort(min(self._unread, key=lambda one: one.is_known))  # the first of several

    def read(self, connection: LimitedConnection) -> None:
        """The client reads again."""
        self._unread.pop(connection, None)

    def remove(self, connection: LimitedConnection) -> None:
        """The connection is closed, or is certain to close soon."""
        self._starting.pop(connection, None)
        self._unread.pop(connection, None)
        self.open.discard(connection)
        if (peer := self._peers.pop(connection, None)) is not None:
            of_peer = self._by_peer[peer]
            of_peer.remove(connection)
            if not of_peer:
                del self._by_peer[peer]
        if not self.open:
            self._all_closed.set()

    async def all_closed(self) -> None:
        """Return when no connection with a transport is left."""
        while self.open:
            await self._all_closed.wait()

    def abort_handshakes(self) -> None:
        for connection, handshake in list(self._starting.items()):
            if handshake is not None:
                self._abort(connection)

    def close_overdue(self, now: float) -> None:
        """Close the connections that have kept the server waiting too long by loop time `now`."""
        for connection in list(self.open):
            connection.close_if_overdue(now)
        for connection, handshake in list(self._starting.items()):
            if handshake is not None and now - handshake.began_at > HANDSHAKE_SECONDS_MAX:
                self._abort(connection)

    def sweep(self) -> None:
        """Close overdue connections, now and every SWEEP_SECONDS until `stop`."""
        loop = asyncio.get_running_loop()
        self.close_overdue(loop.time())
        self._next_sweep = loop.call_later(SWEEP_SECONDS, self.sweep)

    def stop(self) -> None:
        if self._next_sweep is not None:
            self._next_sweep.cancel()

    def _displace(self, among: Iterable[LimitedConnection], count: int, now: float) -> bool:
        """Close up to `count` connections of the first kind that has any. Returns whether it closed one."""
        slow: list[tuple[float, LimitedConnection]] = []
        idle: list[tuple[float, LimitedConnection]] = []
        others: list[tuple[float, LimitedConnection]] = []
        for one in among:
            handshake = self._starting.get(one)
            if handshake is not None:
                kind = slow if now - handshake.began_at > HANDSHAKE_SECONDS_USUAL else others
                kind.append((handshake.began_at, one))
            elif one in self.open and one.is_idle():
                idle.append((one.waiting_since, one))
        displaced = slow or idle or others
        for _, connection in heapq.nsmallest(count, displaced, key=itemgetter(0)):
            self._abort(connection)
        return bool(displaced)

    def _abort(self, connection: LimitedConnection) -> None:
        handshake = self._starting.get(connection)
        if handshake is not None:
            handshake.abort()
        else:
            connection.transport.abort()
        self.remove(connection)


def _limit() -> int:
    """CONNECTIONS_MAX, or less if the process may not open as many files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(16, min(CONNECTIONS_MAX, max(files - FILES_RESERVED, files * 3 // 4)))


def allow_many_files() -> None:
    """Raise this process's soft limit of open files to what CONNECTIONS_MAX needs, at most to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
