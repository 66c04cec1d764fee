"""Runs read-only transactions, only on the server that takes writes (case 26)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ...rules.errors import StoreUnavailableError
from .connections import ConnectionPool, Transaction, slot
from .hosts import NOT_WRITABLE
from .schema_mark import MARK

_CANNOT_WRITE: Final = f"SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, {MARK}"


@asynccontextmanager
async def read_transaction(connections: ConnectionPool) -> AsyncIterator[Transaction]:
    """A transaction that writes no row; READS_MAX run at once. A standby is refused, because it may be behind."""
    async with slot(connections.reads), connections.transaction() as transaction:
        cannot_write, mark = (await transaction.fetch(_CANNOT_WRITE))[0]
        if cannot_write:
            connections.discard_all()
            raise StoreUnavailableError(*NOT_WRITABLE)
        connections.guard.check(mark)
        yield transaction
        await transaction.confirm_primary()
