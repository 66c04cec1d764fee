"""An etcd cluster in use: its members, this node's clock among the others, and the ports over them."""

from typing import Final, Self

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from .address import Address
from .clock_skew import Clocks
from .endpoints import Members
from .layout import LOADING, SCHEMA, Layout
from .locks import EtcdStore
from .quotas import EtcdQuotas
from .registry import EtcdRegistry
from .signals import EtcdSignals
from .snapshot import EtcdSnapshot, half_loaded
from .transactions import Guard, Put, Read


class EtcdCluster:
    """`locks`, `registry`, `quotas` and `signals` under one prefix, which any number of nodes share. Made by `open`."""

    def __init__(self, address: Address, clock: Clock) -> None:
        layout = Layout(address.prefix)
        self.members: Final = Members(address)
        self.clocks: Final = Clocks(clock, self.members, layout)
        self.registry: Final = EtcdRegistry(self.members, layout)
        self.locks: Final = EtcdStore(clock, self.clocks, self.members, layout, self.registry)
        self.quotas: Final = EtcdQuotas(self.members, layout)
        self.snapshot: Final = EtcdSnapshot(self.members, layout, self.clocks, self.locks, self.registry)
        self.signals: Final = EtcdSignals(self.members, layout, layout.signal(self.clocks.node_key))
        self._layout: Final = layout

    @classmethod
    async def open(cls, url: str, clock: Clock) -> Self:
        """Connect to the cluster that `url` names (see `address`), and take our prefix there if nobody has.

        Raises ValueError for a URL that cannot be right, and StoreUnavailableError, whose message says what to do,
        with nothing left open.
        """
        cluster = cls(Address.parse(url), clock)
        try:
            if await cluster._check_schema():
                await cluster.clocks.start()
            else:
                cluster.members.refusal = half_loaded()
        except BaseException:
            await cluster.members.close()
            raise
        return cluster

    async def close(self) -> None:
        """Tell the other nodes, and let go of the connections."""
        await self.signals.close()
        await self.clocks.close()
        await self.members.close()

    async def _check_schema(self) -> bool:
        """Whether nodes may serve from here: not where a load did not come to its end."""
        key = self._layout.schema
        answer = await self.members.write([Guard(key, 0)], [Put(key, str(SCHEMA).encode())], [Read(key)])
        found = None if answer.succeeded else answer.one(0)
        if found is None or found.value == str(SCHEMA).encode():
            return True
        if found.value == LOADING:
            return False
        raise StoreUnavailableError(
            "newer_version",
            f"etcd has another release's layout under this prefix, this release knows {SCHEMA}: "
            "use a newer release, or name another prefix in the store's URL",
        )
