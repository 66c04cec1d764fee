"""One node's connections to the model database, in place of `postgres.connections`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, cast

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.stores.postgres.connections import (
    CONFIRMED_SECONDS_MAX,
    NO_RESPONSE,
    TRANSACTION_SECONDS_MAX,
)

from ..loop import ProcessLoop
from .observed import current_update
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
        self.database: Final = database
        self.node: Final = node
        self.loop: Final = loop
        self.confirmed_at = -1.0
        self.generation = 0

    @asynccontextmanager
    async def transaction(self, *, durable: bool = True, seconds: float | None = None) -> AsyncIterator["_Transaction"]:
        """As `ConnectionPool.transaction`: after StoreUnavailableError it is unknown whether it was committed."""
        transaction = _Transaction(self, self.loop.time() + (seconds or TRANSACTION_SECONDS_MAX))
        try:
            yield transaction
        except BaseException:
            transaction.roll_back()
            raise
        if transaction.keep:
            await transaction.commit(durable)
        else:
            transaction.roll_back()


class _Transaction:
    """One transaction at its node (`connections.Transaction`)."""

    def __init__(self, connections: ModelConnections, deadline: float) -> None:
        self.keep = True
        self.confirms = False
        self._connections: Final = connections
        self._deadline: Final = deadline
        self._server: ServerTransaction | None = None

    async def fetch(self, sql: str, *values: object) -> Sequence[Row]:
        def run(respond: Callable[[object], None]) -> None:
            database = self._connections.database
            if self._server is None:
                self._server = ServerTransaction(database)
            if self._server.is_over or self._server.generation != database.generation:
                respond(StoreUnavailableError(*_LOST))
            else:
                self._server.run(sql, values, respond)

        return cast("Sequence[Row]", await self._call(run))

    async def prove_writable(self) -> None:
        await self.fetch(PROOF)
        self.confirms = True

    async def confirm_primary(self) -> None:
        if self._connections.loop.time() < self._connections.confirmed_at + CONFIRMED_SECONDS_MAX:
            self.keep = False
        else:
            await self.prove_writable()

    async def commit(self, durable: bool) -> None:
        sent_at, update = self._connections.loop.time(), current_update()

        def run(respond: Callable[[object], None]) -> None:
            server = self._server
            if server is None or server.is_over or server.generation != self._connections.database.generation:
                respond(StoreUnavailableError(*_LOST) if server is not None else None)
                return
            server.commit(update)
            if not (durable and self._connections.database.wire.loses_reply()):
                respond(None)

        await self._call(run)
        if self.confirms:
            self._connections.confirmed_at = sent_at

    def roll_back(self) -> None:
        """The server learns of it a moment later, or when it notices that the session is gone."""
        server, database = self._server, self._connections.database
        if server is not None and not database.wire.is_cut(self._connections.node):
            database.world.after(database.wire.delay(), server.end)

    async def _call(self, run: Callable[[Callable[[object], None]], None]) -> object:
        connections, database, loop = self._connections, self._connections.database, self._connections.loop
        world, wire = database.world, database.wire
        result: asyncio.Future[object] = loop.create_future()

        def respond(value: object) -> None:
            if not wire.is_cut(connections.node):
                world.after(wire.delay(), _settle_in, loop, result, value)

        def arrive() -> None:
            if world.now < database.down_until:
                respond(StoreUnavailableError("unreachable", "the model's database cannot be reached"))
            elif not loop.is_killed:
                run(respond)

        if not wire.is_cut(connections.node):
            world.after(wire.delay(), arrive)
        timer = loop.call_at(self._deadline, _settle, result, _NO_RESPONSE)
        try:
            value = await result
        finally:
            timer.cancel()
        if isinstance(value, StoreUnavailableError):
            raise StoreUnavailableError(value.cause_code, value.message)
        return value


def _settle_in(loop: ProcessLoop, result: "asyncio.Future[object]", value: object) -> None:
    loop.call_soon(_settle, result, value)


def _settle(result: "asyncio.Future[object]", value: object) -> None:
    if not result.done():
        result.set_result(value)
