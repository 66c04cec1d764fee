"""Writes the record of an etcd store's clock anew, also while nodes run: they serve again afterwards (CLI-31)."""

from typing import Final

import msgspec

from ...ports.audit_entry import AuditEntry
from ...ports.clock import Clock
from ...rules.clock_history import ClockHistory
from ...rules.errors import DamagedRecordError, StoreUnavailableError
from ...rules.lease import Free, Held
from .address import EtcdAddress
from .audit import audit_puts
from .endpoints import Endpoints
from .layout import Layout
from .peer_clocks import find_clock
from .store import EtcdCluster
from .transactions import Compare, Put

_CHANGED: Final = ("store_in_use", "the record of the clock changed meanwhile: run this again")


async def find_clock_damage(url: str, _clock: Clock) -> DamagedRecordError | None:
    """The damage of the record, None if it is intact. Raises ValueError and StoreUnavailableError."""
    address = EtcdAddress.parse(url)
    endpoints = Endpoints(address)
    try:
        return (await find_clock(endpoints, Layout(address.prefix))).damage
    finally:
        await endpoints.close()


async def repair_clock(url: str, clock: Clock, entry: AuditEntry | None) -> None:
    """Write it anew. Its instant is the newest of the nodes', or this machine's if that is later. Raises ValueError
    and StoreUnavailableError.
    """
    address = EtcdAddress.parse(url)
    cluster, layout = EtcdCluster(address, clock), Layout(address.prefix)
    try:
        stored, nodes, damage = await find_clock(cluster.endpoints, layout)
        if damage is None:
            return
        now_ms = max([clock.now_ms(), *(node.now_ms for node in nodes)])
        lead_ms = 0
        async for page in cluster.locks.pages():
            for _key, record in page:
                if isinstance(record, Held | Free):
                    granted_ms = record.freed_at_ms if isinstance(record, Free) else record.acquired_at_ms
                    lead_ms = max(lead_ms, record.fencing_token - granted_ms)
        known = ClockHistory(jumps_ms=max((node.jumps_ms for node in nodes), default=0))
        history = known.rewritten(now_ms, await cluster.locks.last_free_from_ms(), lead_ms)
        compare = Compare(layout.clock, 0 if stored is None else stored.mod_revision)
        puts = [Put(layout.clock, msgspec.json.encode(history)), *audit_puts(layout, entry)]
        if not (await cluster.endpoints.write([compare], puts)).succeeded:
            raise StoreUnavailableError(*_CHANGED)
    finally:
        await cluster.endpoints.close()
