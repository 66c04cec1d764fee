"""Pages of lock records in etcd: one linearizable read of a range of keys, which etcd keeps in the order of bytes.

The instant is read before the records, so a lease that is renewed in between is not called ended. Afterwards the
clock is compared with what they were written by, like everywhere (see `clocks`).
"""

from collections.abc import Callable

from ...ports.lock_store import LockPage, LockQuery
from ...rules.lease import LockRecord
from ..lock_pages import key_range, looked_at_max, page_of
from . import records
from .clock_skew import Clocks
from .endpoints import Members
from .layout import Layout
from .transactions import Found, Read


async def read_locks(
    members: Members, layout: Layout, clocks: Clocks, query: LockQuery, record_of: Callable[[Found], LockRecord]
) -> LockPage:
    """The page; `record_of` reads what is kept. Raises StoreUnavailableError."""
    now_ms = await clocks.now_ms()
    of_project = layout.locks_of(query.project_id)
    begin, end = (of_project + key.encode() for key in key_range(query))
    asked_for = looked_at_max(query)
    rows = (await members.read(Read(begin, end, asked_for))).found[0]
    found = [(layout.record_key(row.key).key, record_of(row)) for row in rows]
    read_ms = await clocks.now_ms()
    for _, record in found:
        clocks.judge(records.written_at_ms(record), read_ms)
    return page_of(query, found, now_ms, asked_for=asked_for)
