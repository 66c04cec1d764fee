"""An open PostgreSQL store: its connections, and the ports on top of them."""

from typing import Final, Self

from ...ports.clock import Clock
from ...ports.lock_store import BATCH_MAX, StoreCounts
from .connections import ConnectionPool
from .locks import PostgresStore
from .quotas import PostgresQuotas
from .registry import PostgresRegistry
from .schema import apply_migrations
from .signals import PostgresSignals
from .snapshot import PostgresSnapshot


class PostgresDatabase:
    """The ports of one node. Any number of nodes share the database. Made by `open`."""

    batches_in_flight: Final = 2  # one runs its step while the other commits
    batch_max: Final = BATCH_MAX

    def __init__(self, connections: ConnectionPool, counts: StoreCounts, clock: Clock | None) -> None:
        self._connections: Final = connections
        self.counts: Final = counts
        self.locks: Final = PostgresStore(connections, counts, clock)
        self.registry: Final = PostgresRegistry(connections)
        self.quotas: Final = PostgresQuotas(connections)
        self.signals: Final = PostgresSignals(connections.hosts)
        self.snapshot: Final = PostgresSnapshot(connections, clock)

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> Self:
        """Connect, and migrate the schema to the newest version. `clock` replaces the database's, for tests.

        Raises ValueError for an invalid URL, and StoreUnavailableError, whose message says what to do, with everything
        closed.
        """
        counts = StoreCounts()
        connections = ConnectionPool(url, counts)
        try:
            await apply_migrations(connections)
            database = cls(connections, counts, clock)
            await database.locks.refuse_wrong_clock()
        except BaseException:
            await connections.close()
            raise
        return database

    async def close(self) -> None:
        """Finish running transactions, refuse new ones, close every connection."""
        await self.signals.close()
        await self._connections.close()
