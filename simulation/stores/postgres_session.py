"""One node's connections to the model database, in place of `postgres.connections`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.stores.postgres.connections import (
    CONFIRMED_SECONDS_MAX,
    NO_RESPONSE,
    READS_MAX,
    TRANSACTION_SECONDS_MAX,
)

from ..loop import ProcessLoop
from .observed import Update, current_update
from .postgres_server import PROOF, Row, ServerTransaction

if TYPE_CHECKING:
    from .postgres import ModelDatabase

_LOST: Final = ("connection_lost", "the connection to the model's database was lost")


_NO_RESPONSE: Final = StoreUnavailableError(*NO_RESPONSE)


class _NoGuard:
    def check(self, _mark: str | None) -> None: ...


class ModelConnections:
    """One node's connections, in place of `postgres.connections.ConnectionPool`."""

    def __init__(self, database: "ModelDatabase", node: str, loop: ProcessLoop) -> None:
        self.guard: Final = _NoGuard()
        self.reads: Final = asyncio.Semaphore(READS_MAX)
        self.database: Final = database
        self.node: Final = node
        self.loop: Final = loop
        self.confirmed_at = -1.0
        self.generation = 0

    def is_cut(self) -> bool:
        return self.database.wire.is_cut(self.node)

    def transaction(self, *, durable: bool = True, seconds: float | None = None) -> "_Transaction":
        """As `ConnectionPool.transaction`: after StoreUnavailableError it is unknown whether it was committed."""
        return _Transaction(self, self.loop.time() + (seconds or TRANSACTION_SECONDS_MAX), durable=durable)


class _Transaction:
    """One transaction at its node (`connections.Transaction`)."""

    def __init__(self, connections: ModelConnections, deadline: float, *, durable: bool) -> None:
        self.keep = True
        self.confirms = False
        self._connections: Final = connections
        self._deadline: Final = deadline
        self._durable: Final = durable
        self._server: ServerTransaction | None = None

    async def __aenter__(self) -> "_Transaction":
        return self

    async def __aexit__(self, raised: type[BaseException] | None, *_error: object) -> None:
        if raised is None and self.keep:
            await self._commit()
        else:
            self._roll_back()

    async def fetch(self, sql: str, *values: object) -> Sequence[Row]:
        return cast("Sequence[Row]", await self._call(self._run, sql, values))

    def _run(self, respond: Callable[[object], None], sql: str, values: tuple[object, ...]) -> None:
        database = self._connections.database
        if self._server is None:
            self._server = ServerTransaction(database)
        if self._server.is_over or self._server.generation != database.generation:
            respond(StoreUnavailableError(*_LOST))
        else:
            self._server.run(sql, values, respond)

    async def prove_writable(self) -> None:
        await self.fetch(PROOF)
        self.confirms = True

    async def confirm_primary(self) -> None:
        if self._connections.loop.time() < self._connections.confirmed_at + CONFIRMED_SECONDS_MAX:
            self.keep = False
        else:
            await self.prove_writable()

    async def _commit(self) -> None:
        sent_at = self._connections.loop.time()
        await self._call(self._run_commit, current_update())
        if self.confirms:
            self._connections.confirmed_at = sent_at

    def _run_commit(self, respond: Callable[[object], None], update: Update | None) -> None:
        server, database = self._server, self._connections.database
        if server is None or server.is_over or server.generation != database.generation:
            respond(StoreUnavailableError(*_LOST) if server is not None else None)
            return
        server.commit(update)
        if not (self._durable and database.wire.loses_reply()):
            respond(None)

    def _roll_back(self) -> None:
        """The server learns of it a moment later, or when it notices that the session is gone."""
        server, database = self._server, self._connections.database
        if server is not None and not database.wire.is_cut(self._connections.node):
            database.world.after(database.wire.delay(), server.end)

    async def _call(self, run: Callable[..., None], *values: object) -> object:
        """What the server responds to `run(respond, *values)`, which runs there. Raises StoreUnavailableError."""
        connections, loop = self._connections, self._connections.loop
        result: asyncio.Future[object] = loop.create_future()
        call = _Call(connections, result)
        if not connections.is_cut():
            connections.database.world.after(connections.database.wire.delay(), call.arrive, run, values)
        timer = loop.call_at(self._deadline, _settle, result, _NO_RESPONSE)
        try:
            value = await result
        finally:
            timer.cancel()
        if isinstance(value, StoreUnavailableError):
            raise StoreUnavailableError(value.cause_code, value.message)
        return value


class _Call:
    """One call on its way to the server, and its response."""

    __slots__ = ("_connections", "_result")

    def __init__(self, connections: ModelConnections, result: "asyncio.Future[object]") -> None:
        self._connections: Final = connections
        self._result: Final = result

    def arrive(self, run: Callable[..., None], values: tuple[object, ...]) -> None:
        database = self._connections.database
        if database.world.now < database.down_until:
            self.respond(StoreUnavailableError("unreachable", "the model's database cannot be reached"))
        elif not self._connections.loop.is_killed:
            run(self.respond, *values)

    def respond(self, value: object) -> None:
        connections, database = self._connections, self._connections.database
        if not connections.is_cut():
            database.world.after(database.wire.delay(), connections.loop.call_soon, _settle, self._result, value)


def _settle(result: "asyncio.Future[object]", value: object) -> None:
    if not result.done():
        result.set_result(value)
