"""Three nodes on PostgreSQL with a synchronous standby, one of them behind PgBouncer; faults of the database."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

from testsupport.engines import postgres
from testsupport.engines.postgres import Postgres
from testsupport.faked_date import FakedDate
from testsupport.fault_proxy import FaultProxy
from testsupport.server_process import ServerProcess

from .faults import Deployment, Faults, NetworkFaults, kind, start_all, stopped
from .worker_process import now

FAULT_SECONDS = (2, 6)
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'volcano-locks'"


@asynccontextmanager
async def deployed(folder: Path, seed: object) -> AsyncIterator[Deployment]:
    """Three nodes, running: two know both servers, the third reaches the primary through PgBouncer."""
    date = FakedDate(folder / "date")
    with ExitStack() as servers:
        primary = await asyncio.to_thread(servers.enter_context, postgres.primary(environment=date.environment))
        async with AsyncExitStack() as stack:
            database = Database(servers, primary, date)
            for _ in range(2):
                database.networks.append([await stack.enter_async_context(FaultProxy(primary.port)) for _ in range(2)])
            database.replication = await stack.enter_async_context(FaultProxy(primary.port))
            database.pooled = await stack.enter_async_context(FaultProxy(primary.port))
            await asyncio.to_thread(database.add_standby)
            bouncer = await asyncio.to_thread(stack.enter_context, postgres.pgbouncer(database.pooled))
            stores = [",".join(f"127.0.0.1:{proxy.port}" for proxy in network) for network in database.networks]
            nodes = [
                ServerProcess(f"postgresql://postgres@{hosts}/postgres") for hosts in (*stores, f"127.0.0.1:{bouncer}")
            ]
            for node in nodes:
                stack.callback(node.close)
            await start_all(nodes)
            front = await stack.enter_async_context(FaultProxy(*(node.port for node in nodes)))
            deployment = Deployment("PostgreSQL", nodes, front)
            faults = _Faults(deployment, database, seed)
            networks = [*database.networks, [database.pooled]]
            deployment.faults |= NetworkFaults(networks, seed).by_kind() | faults.by_kind()
            yield deployment


class Database:
    """A primary and its standby, which take turns, and the proxies in front of them."""

    def __init__(self, servers: ExitStack, primary: Postgres, date: FakedDate) -> None:
        self.primary = primary
        self.standby: Postgres
        self.networks: list[list[FaultProxy]] = []
        """For each node that knows both servers, a proxy to each."""
        self.replication: FaultProxy
        self.pooled: FaultProxy
        """The proxy between PgBouncer and the primary."""
        self.date = date
        self._servers = servers

    def add_standby(self) -> None:
        """Start a new standby of the primary."""
        made = postgres.standby(self.primary, self.replication.port, environment=self.date.environment)
        self.standby = self._servers.enter_context(made)
        for network in self.networks:
            network[1].forward_to(self.standby.port)

    def promote_standby(self) -> None:
        """Make the standby the primary. The old primary must be ended, and a new standby added."""
        self.standby.promote()
        self.primary = self.standby
        for proxy in (self.pooled, self.replication):
            proxy.forward_to(self.primary.port)
        for network in self.networks:
            network.reverse()


class _Faults(Faults):
    def __init__(self, deployment: Deployment, database: Database, seed: object) -> None:
        self._deployment = deployment
        self._database = database
        self._ahead_seconds = 0
        self._random = random.Random(f"postgres {seed}")

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(*FAULT_SECONDS))

    @kind("primary: restarted")
    async def primary_restarted(self) -> AsyncIterator[float]:
        """With its sessions disconnected."""
        await asyncio.to_thread(self._database.primary.stop)
        await asyncio.to_thread(self._database.primary.start)
        yield now()

    @kind("primary: crashed")
    async def primary_crashed(self) -> AsyncIterator[float]:
        """All its processes are killed, and it recovers."""
        await asyncio.to_thread(self._database.primary.crash)
        await asyncio.to_thread(self._database.primary.start)
        yield now()

    @kind("primary: hung")
    async def primary_hung(self) -> AsyncIterator[float]:
        """Neither it nor its sessions run for some seconds."""
        pid = self._database.primary.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        with stopped(pid, *map(int, children)):
            await self._pause()
        yield now()

    @kind("primary: fail-over")
    async def fail_over(self) -> AsyncIterator[float]:
        """The primary crashes, and the standby is promoted."""
        old = self._database.primary
        await asyncio.to_thread(old.crash)
        await asyncio.to_thread(self._database.promote_standby)
        promoted_at = now()
        self._database.pooled.cut()
        yield promoted_at
        shutil.rmtree(old.folder)
        await asyncio.to_thread(self._database.add_standby)

    @kind("primary: fail-over, it survives")
    async def fail_over_while_it_survives(self) -> AsyncIterator[float]:
        """The primary is isolated from its standby, which is promoted. The pooler leads to the old one for a while."""
        old, replication = self._database.primary, self._database.replication
        replication.hold_all()
        await asyncio.sleep(self._random.uniform(0, 1))
        replication.cut()
        await asyncio.to_thread(self._database.promote_standby)
        await self._pause()
        self._database.pooled.cut()
        yield now()
        await asyncio.to_thread(old.crash)
        shutil.rmtree(old.folder)
        replication.forward_all()
        await asyncio.to_thread(self._database.add_standby)

    @kind("standby: killed")
    async def standby_killed(self) -> AsyncIterator[float]:
        """Commits wait for it until it is back."""
        await asyncio.to_thread(self._database.standby.crash)
        await self._pause()
        await asyncio.to_thread(self._database.standby.start)
        yield now()

    @kind("sessions: terminated")
    async def sessions_terminated(self) -> AsyncIterator[float]:
        """As an operator does who looks for the cause of a slow database."""
        for _ in range(5):
            await asyncio.to_thread(self._database.primary.execute, TERMINATE)
            await asyncio.sleep(self._random.uniform(0, 0.5))
        yield now()

    @kind("table: locked")
    async def table_locked(self) -> AsyncIterator[float]:
        """As a migration or VACUUM FULL does."""

        def lock(seconds: float) -> None:
            with self._database.primary.connect() as connection, connection.transaction():
                connection.execute("LOCK TABLE volcano_locks.lock IN ACCESS EXCLUSIVE MODE")
                connection.execute("SELECT pg_sleep(%s)", [seconds])

        await asyncio.to_thread(lock, self._random.uniform(*FAULT_SECONDS))
        yield now()

    @kind("database: read-only")
    async def read_only(self) -> AsyncIterator[float]:
        """Every new transaction is read-only, as with some providers when a disk is full."""
        execute = self._database.primary.execute
        await asyncio.to_thread(execute, "ALTER SYSTEM SET default_transaction_read_only = on")
        await asyncio.to_thread(execute, "SELECT pg_reload_conf()")
        await self._pause()
        await asyncio.to_thread(execute, "ALTER SYSTEM RESET default_transaction_read_only")
        await asyncio.to_thread(execute, "SELECT pg_reload_conf()")
        yield now()

    @kind("network: PgBouncer's cut")
    async def pooler_cut(self) -> AsyncIterator[float]:
        """PgBouncer loses its connections, again and again."""
        for _ in range(5):
            self._database.pooled.cut()
            await asyncio.sleep(self._random.uniform(0, 0.5))
        yield now()

    @kind("date: set ahead")
    async def date_ahead(self) -> AsyncIterator[float]:
        """The database's clock is set ahead: takeovers are held (LEASE-17)."""
        self._ahead_seconds += self._random.choice([5, 60, 3_600])
        stepped_at = now()
        self._deployment.date_steps.append(stepped_at)
        self._database.date.step(self._ahead_seconds)
        yield stepped_at

    @kind("date: an hour back")
    async def date_back(self) -> AsyncIterator[float]:
        """The database's clock is set back by an hour, and then right."""
        self._database.date.step(self._ahead_seconds - 3_600)
        await self._pause()
        self._database.date.step(self._ahead_seconds)
        yield now()
