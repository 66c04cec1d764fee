"""Readiness takes the path of an acquire on every store, and leaves nothing that a user sees (OPS-10, case 73)."""

from collections.abc import AsyncIterator, Sequence

import pytest
from testsupport.engines import postgres

from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.ports.snapshot import Entry
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.readiness import PROBE_PROJECT
from volcano_locks_server.testing import ManualClock

from .store_actions import digest, key, run_commands


async def nothing() -> AsyncIterator[Sequence[Entry]]:
    """The pages of an empty store."""
    for page in ():
        yield page


async def test_a_probe_is_in_no_list_count_or_copy(store: OpenStore, clock: ManualClock) -> None:
    """OPS-10: a store that was only asked whether it is ready is still empty (KEEP-1)."""
    for _ in range(3):
        await store.locks.ready()
        clock.advance(1_000)
    assert store.snapshot is not None
    assert await store.locks.count_held() == 0
    assert [page async for page in store.snapshot.pages()] == []
    await store.snapshot.load(nothing(), clock.now_ms())
    await run_commands(store.locks, (key("a"), Acquire(digest("a"), 30)))
    with pytest.raises(StoreUnavailableError, match="holds projects, keys, admin tokens, locks or an audit"):
        await store.snapshot.load(nothing(), clock.now_ms())


async def test_probes_reuse_one_record(store: OpenStore, clock: ManualClock) -> None:
    """OPS-10: a probe every second must not fill the store."""
    for _ in range(5):
        await store.locks.ready()
        clock.advance(1_000)
    assert len((await store.locks.list_locks(LockQuery(PROBE_PROJECT, 10))).records) == 1


async def test_a_locked_postgres_table_is_not_ready(clock: ManualClock) -> None:
    """OPS-10, case 73: `LOCK TABLE`, as in VACUUM FULL: every acquire fails, so readiness does too."""
    server = postgres.shared()
    database = server.new_database()
    store = await open_store(server.url(database), clock)
    await store.locks.ready()
    with server.connect(database) as other, other.transaction():
        other.execute("LOCK TABLE volcano_locks.lock IN ACCESS EXCLUSIVE MODE")
        for refused in (run_commands(store.locks, (key("a"), Acquire(digest("a"), 30))), store.locks.ready()):
            with pytest.raises(StoreUnavailableError) as caught:
                await refused
            assert caught.value.cause_code == "store_busy"
    await store.locks.ready()
    await store.close()
