"""An open PostgreSQL store: its connections, and the ports on top of them."""

from typing import Final, Self

from ...ports.clock import Clock, SystemClock
from ...ports.lock_store import BATCH_MAX, StoreCounts
from .admin_tokens import PostgresAdminTokens
from .audit import PostgresAudit
from .clock import DatabaseClock
from .connections import ConnectionPool
from .locks import PostgresStore
from .nodes import PostgresNodes
from .quotas import PostgresQuotas
from .registry import PostgresRegistry
from .repairs import PostgresRepairs
from .schema import apply_migrations, migrations
from .schema_mark import SchemaGuard
from .sessions import PostgresSessions
from .signals import PostgresSignals
from .snapshot import PostgresSnapshot


class PostgresDatabase:
    """The ports of one node. Any number of nodes share the database. Made by `open`."""

    batches_in_flight: Final = 2  # one runs its step while the other commits
    batch_max: Final = BATCH_MAX

    def __init__(self, connections: ConnectionPool, counts: StoreCounts, database_clock: DatabaseClock) -> None:
        self.is_new = False
        self._connections: Final = connections
        self.counts: Final = counts
        self.clock: Final = database_clock
        self.locks: Final = PostgresStore(connections, counts, database_clock)
        self.registry: Final = PostgresRegistry(connections)
        self.admin_tokens: Final = PostgresAdminTokens(connections)
        self.sessions: Final = PostgresSessions(connections)
        self.audit: Final = PostgresAudit(connections)
        self.quotas: Final = PostgresQuotas(connections)
        self.nodes: Final = PostgresNodes(database_clock)
        self.signals: Final = PostgresSignals(connections.hosts)
        self.repairs: Final = PostgresRepairs(connections)
        self.snapshot: Final = PostgresSnapshot(connections, database_clock)

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None, node_clock: Clock | None = None) -> Self:
        """Connect, and migrate the schema to the newest version. For tests, `clock` replaces the database's, and
        `node_clock` this node's (by default `clock`).

        Raises ValueError for an invalid URL, and StoreUnavailableError, whose message says what to do, with everything
        closed.
        """
        counts = StoreCounts()
        connections = ConnectionPool(url, counts, SchemaGuard(migrations()[-1].number))
        try:
            version_before, _ = await apply_migrations(connections)
            database = cls(connections, counts, DatabaseClock(connections, node_clock or clock or SystemClock(), clock))
            database.is_new = version_before == 0
            await database.clock.begin()
        except BaseException:
            await connections.close()
            raise
        return database

    async def close(self) -> None:
        """Finish running transactions, refuse new ones, close every connection."""
        await self.signals.close()
        await self._connections.close()
