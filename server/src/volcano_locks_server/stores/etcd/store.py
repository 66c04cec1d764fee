"""An open etcd store: the cluster's endpoints, the clock skew monitor, and the ports on top of them."""

from typing import Final, Self

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from .address import EtcdAddress
from .clock_skew import ClockSkewMonitor
from .endpoints import Endpoints
from .layout import LOADING, SCHEMA, Layout
from .locks import BATCH_MAX, EtcdStore
from .quotas import EtcdQuotas
from .registry import EtcdRegistry
from .signals import EtcdSignals
from .snapshot import EtcdSnapshot, half_loaded
from .transactions import Compare, Get, Put


class EtcdCluster:
    """The ports of one node. Any number of nodes share the keys under one prefix. Made by `open`."""

    batches_in_flight: Final = 2  # while one batch is synced to the members' disks, the next one runs its step
    batch_max: Final = BATCH_MAX

    def __init__(self, address: EtcdAddress, clock: Clock) -> None:
        layout = Layout(address.prefix)
        self.endpoints: Final = Endpoints(address)
        self.counts: Final = self.endpoints.counts
        self.skew_monitor: Final = ClockSkewMonitor(clock, self.endpoints, layout)
        self.registry: Final = EtcdRegistry(self.endpoints, layout)
        self.locks: Final = EtcdStore(self.skew_monitor, self.endpoints, layout, self.registry)
        self.quotas: Final = EtcdQuotas(self.endpoints, layout)
        self.snapshot: Final = EtcdSnapshot(self.endpoints, layout, self.skew_monitor, self.locks, self.registry)
        self.signals: Final = EtcdSignals(self.endpoints, layout, layout.signal(self.skew_monitor.node_key))
        self._layout: Final = layout

    @classmethod
    async def open(cls, url: str, clock: Clock) -> Self:
        """Connect to the cluster that `url` names (see `address`), and write the schema key if the prefix is unused.

        Raises ValueError for an invalid URL, and StoreUnavailableError, whose message says what to do. An error leaves
        no connection open.
        """
        cluster = cls(EtcdAddress.parse(url), clock)
        try:
            if await cluster._check_schema():
                await cluster.skew_monitor.start()
            else:
                cluster.endpoints.refusal = half_loaded()
        except BaseException:
            await cluster.endpoints.close()
            raise
        return cluster

    async def close(self) -> None:
        """Announce to the other nodes that this one stops, and close the connections."""
        await self.signals.close()
        await self.skew_monitor.close()
        await self.endpoints.close()

    async def _check_schema(self) -> bool:
        """Whether nodes may serve from this prefix; False after an incomplete load."""
        key = self._layout.schema
        result = await self.endpoints.write([Compare(key, 0)], [Put(key, str(SCHEMA).encode())], [Get(key)])
        found = None if result.succeeded else result.one(0)
        if found is None or found.value == str(SCHEMA).encode():
            return True
        if found.value == LOADING:
            return False
        raise StoreUnavailableError(
            "newer_version",
            f"another release wrote the layout under this prefix of etcd; this release knows {SCHEMA}: "
            "use a newer release, or name another prefix in the store's URL",
        )
