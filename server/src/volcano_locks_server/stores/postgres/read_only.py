"""Reading what no row lock protects, and only from the server that is written to (case 26)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ...rules.errors import StoreUnavailableError
from .connections import Connections, Transaction
from .hosts import NOT_WRITABLE

_CANNOT_WRITE: Final = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"


@asynccontextmanager
async def reading(connections: Connections) -> AsyncIterator[Transaction]:
    """A transaction that writes nothing. A standby would answer too, but with what was so a while ago."""
    async with connections.transaction() as transaction:
        if (await transaction.fetch(_CANNOT_WRITE))[0][0]:
            connections.look_elsewhere()
            raise StoreUnavailableError(*NOT_WRITABLE)
        yield transaction
        await transaction.vouch()
