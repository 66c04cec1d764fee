"""Reads pages of lock records from etcd: one linearizable read of a range of keys, in byte order.

The instant is read before the records, so a lease renewed in between does not show as ended. Afterwards the clock is
compared with the instants in the records (see `clock_skew`).
"""

from collections.abc import Callable

from ...ports.lock_store import LockPage, LockQuery
from ...rules.lease import LockRecord
from ..lock_pages import build_page, key_range, scan_limit
from . import records
from .clock_skew import ClockSkewMonitor
from .endpoints import Endpoints
from .layout import Layout
from .transactions import Get, KeyValue


async def read_locks(
    endpoints: Endpoints,
    layout: Layout,
    skew_monitor: ClockSkewMonitor,
    query: LockQuery,
    record_of: Callable[[KeyValue], LockRecord],
) -> LockPage:
    """The page; `record_of` decodes a record. Raises StoreUnavailableError."""
    now_ms = await skew_monitor.now_ms()
    of_project = layout.locks_of(query.project_id)
    begin, end = (of_project + key.encode() for key in key_range(query))
    requested = scan_limit(query)
    rows = (await endpoints.read(Get(begin, end, requested))).reads[0]
    found = [(layout.record_key(row.key).key, record_of(row)) for row in rows]
    read_ms = await skew_monitor.now_ms()
    for _, record in found:
        skew_monitor.refuse_future_record(records.written_at_ms(record), read_ms)
    return build_page(query, found, now_ms, requested=requested)
