"""An open etcd store: the cluster's endpoints, the clock skew monitor, and the ports on top of them."""

from typing import Final, Self

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from .address import EtcdAddress
from .admin_tokens import EtcdAdminTokens
from .audit import EtcdAudit
from .clock_skew import ClockSkewMonitor
from .endpoints import Endpoints
from .history import EtcdHistory
from .layout import Layout
from .locks import BATCH_MAX, EtcdStore
from .member_causes import explained
from .nodes import EtcdNodes
from .quotas import EtcdQuotas
from .registry import EtcdRegistry
from .repairs import EtcdRepairs
from .schema_guard import SchemaGuard, half_loaded
from .sessions import EtcdSessions
from .signals import EtcdSignals
from .snapshot import EtcdSnapshot


class EtcdCluster:
    """The ports of one node. Any number of nodes share the keys under one prefix. Made by `open`."""

    batches_in_flight: Final = 2  # while one batch is synced to the members' disks, the next one runs its step
    batch_max: Final = BATCH_MAX

    def __init__(self, address: EtcdAddress, clock: Clock) -> None:
        layout = Layout(address.prefix)
        self.endpoints: Final = Endpoints(address)
        self.counts: Final = self.endpoints.counts
        self.guard: Final = SchemaGuard(self.endpoints, layout)
        self.skew_monitor: Final = ClockSkewMonitor(clock, self.endpoints, layout, self.guard)
        history = EtcdHistory(self.endpoints, layout)
        self.audit: Final = EtcdAudit(self.endpoints, layout)
        self.registry: Final = EtcdRegistry(self.endpoints, layout, history)
        self.admin_tokens: Final = EtcdAdminTokens(self.endpoints, layout)
        self.sessions: Final = EtcdSessions(self.endpoints, layout)
        self.locks: Final = EtcdStore(self.skew_monitor, self.endpoints, layout, self.registry, history)
        self.skew_monitor.last_free_from_ms = self.locks.last_free_from_ms
        self.quotas: Final = EtcdQuotas(self.endpoints, layout)
        self.repairs: Final = EtcdRepairs(self.endpoints, layout)
        self.snapshot: Final = EtcdSnapshot(
            self.endpoints,
            layout,
            self.skew_monitor,
            self.locks,
            self.registry,
            admin_tokens=self.admin_tokens,
            audit=self.audit,
            guard=self.guard,
        )
        self.nodes: Final = EtcdNodes(self.skew_monitor, layout)
        self.signals: Final = EtcdSignals(self.endpoints, layout, layout.signal(self.skew_monitor.node_key))

    @property
    def is_new(self) -> bool:
        return self.guard.has_created

    @classmethod
    async def open(cls, url: str, clock: Clock) -> Self:
        """Connect to the cluster that `url` names (see `address`), and write the schema key if the prefix is unused.

        Raises ValueError for an invalid URL, and StoreUnavailableError, whose message says what to do. An error leaves
        no connection open.
        """
        address = EtcdAddress.parse(url)
        cluster = cls(address, clock)
        try:
            await cluster.endpoints.refuse_two_clusters()
            if await cluster.guard.open():
                await cluster.skew_monitor.start()
            else:
                cluster.endpoints.refusal = half_loaded()
        except StoreUnavailableError as error:
            await cluster.endpoints.close()
            raise await explained(error, address) from error
        except BaseException:
            await cluster.endpoints.close()
            raise
        return cluster

    async def close(self) -> None:
        """Announce to the other nodes that this one stops, and close the connections."""
        await self.signals.close()
        self.locks.stop_trimming()
        await self.skew_monitor.close()
        await self.endpoints.close()
