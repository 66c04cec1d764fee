"""A PostgreSQL database in use: its connections, and the ports over them."""

from typing import Final, Self

from ...ports.clock import Clock
from ...ports.lock_store import StoreCounts
from .connections import Connections
from .locks import PostgresStore
from .quotas import PostgresQuotas
from .registry import PostgresRegistry
from .schema import brought_on
from .signals import PostgresSignals
from .snapshot import PostgresSnapshot

BATCHES_IN_FLIGHT: Final = 2  # one is on its way while the other is committed


class PostgresDatabase:
    """`locks`, `registry`, `quotas`, `signals` and `snapshot` in one database, which any number of nodes share.

    Made by `open`.
    """

    def __init__(self, connections: Connections, counts: StoreCounts, clock: Clock | None) -> None:
        self._connections: Final = connections
        self.counts: Final = counts
        self.locks: Final = PostgresStore(connections, counts, clock)
        self.registry: Final = PostgresRegistry(connections)
        self.quotas: Final = PostgresQuotas(connections)
        self.signals: Final = PostgresSignals(connections.hosts)
        self.snapshot: Final = PostgresSnapshot(connections, clock)

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None) -> Self:
        """Connect, and bring the schema to the newest version. `clock` takes the place of the database's, for tests.

        Raises ValueError for a URL that cannot be read, and StoreUnavailableError, whose message says what to do,
        with nothing left open.
        """
        counts = StoreCounts()
        connections = Connections(url, counts)
        try:
            await brought_on(connections)
            database = cls(connections, counts, clock)
            await database.locks.refuse_a_wrong_clock()
        except BaseException:
            await connections.close()
            raise
        return database

    async def close(self) -> None:
        """Finish what is under way, refuse what comes later, let go of every connection."""
        await self.signals.close()
        await self._connections.close()
