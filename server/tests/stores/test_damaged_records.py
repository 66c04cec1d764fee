"""A record that cannot be decoded fails its own key on every store, and nothing else (LEASE-18, case 63)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from msgspec.structs import replace as replace_field
from testsupport.engines import etcd

from volcano_locks_server.ports.audit import AuditQuery
from volcano_locks_server.ports.audit_entry import Act, new_unique
from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.ports.registry import NewSecret, Project, ServiceKey
from volcano_locks_server.rules.errors import DamagedRecordError, StoreUnavailableError
from volcano_locks_server.rules.lease import (
    RETENTION_MS,
    Acquire,
    Damaged,
    ForceRelease,
    Granted,
    Held,
    Read,
    Refused,
    Release,
    State,
)
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.damage import STORED_LENGTH_MAX
from volcano_locks_server.stores.maintenance import find_damaged, repair
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from .conftest import url_of
from .record_damage import ONLY_SQLITE, SQL_LOCKS_PURGED, lock_damages, put_etcd, run_postgres, run_sqlite
from .store_actions import PROJECT, digest, key, read_records, run_commands

FIRST, SECOND = (Project(PROJECT[:-1] + end, f"project-{end}", 600, 1) for end in "12")
KEY = ServiceKey("6f1c2a34-0000-4000-8000-00000000000a", FIRST.id, "one", "sk-abc", ("*",), 1)
OTHER_KEY = ServiceKey("6f1c2a34-0000-4000-8000-00000000000b", FIRST.id, "two", "sk-def", ("*",), 1)


class Spoilable(NamedTuple):
    store: OpenStore
    url: str


@pytest.fixture(params=["memory", "sqlite", "postgres", "etcd"])
async def spoilable(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Spoilable]:
    """An open store with two projects and two service keys, and its URL."""
    url = url_of(request.param, request)
    store = await open_store(url, clock)
    for project in (FIRST, SECOND):
        await store.registry.add_project(project)
    for one in (KEY, OTHER_KEY):
        await store.registry.add_service_key(one, digest(one.name))
    yield Spoilable(store, url)
    await store.close()


async def test_a_damaged_lock_fails_alone(spoilable: Spoilable, clock: ManualClock) -> None:
    """LEASE-18, case 63, case 34: in the batch, the list, the gauge, readiness and the purge, whatever the damage."""
    store, url = spoilable
    locks = store.locks
    damages = lock_damages(store, url)
    spoilt = [key(f"spoilt-{number}") for number in range(len(damages))]
    healthy = [key(f"healthy-{number}") for number in range(3)]
    await run_commands(locks, *((one, Acquire(digest(one.key), 60, "host/1")) for one in (*spoilt, *healthy)))
    for one, damage in zip(spoilt, damages, strict=True):
        await damage(one)

    for commands in (Acquire(digest("x"), 30), Read(), Release(digest("x")), ForceRelease()):
        outcomes = await run_commands(locks, *((one, commands) for one in (*spoilt, key("new"))))
        assert [one.code for one in outcomes[:-1] if isinstance(one, Refused)] == ["lock_record_damaged"] * len(spoilt)
        assert not isinstance(outcomes[-1], Refused)
    repeated = await run_commands(locks, *((one, Acquire(digest(one.key), 60)) for one in (*spoilt, *healthy)))
    assert [isinstance(one, Granted) for one in repeated] == [False] * len(spoilt) + [True] * 3

    for held in (None, True):
        query = LockQuery(PROJECT, 2, held=held)
        listed: list[str] = []
        damaged: set[str] = set()
        while True:
            page = await locks.list_locks(query)
            listed += [one for one, _ in page.records]
            damaged |= {one for one, _ in page.damaged}
            if page.next_after is None:
                break
            query = query._replace(after=page.next_after)
        assert listed == [one.key for one in healthy] + (["new"] if held is None else [])
        assert damaged <= {one.key for one in spoilt}
        if held is None:
            assert damaged == {one.key for one in spoilt}
    assert await locks.count_held() >= len(healthy)
    await locks.ready()

    clock.advance(90_000_000 + RETENTION_MS)
    await locks.ready()
    await locks.purge(limit=1_000)
    records = await read_records(locks, *spoilt, *healthy)
    by_its_instants = len(SQL_LOCKS_PURGED) if url.startswith(("sqlite", "postgres")) else 0
    by_its_instants += len(ONLY_SQLITE) if url.startswith("sqlite") else 0
    kept = [Damaged] * (len(spoilt) - by_its_instants)
    assert [type(one) for one in records] == kept + [type(None)] * (by_its_instants + 3)


async def test_takeovers_are_held_beside_damaged_records(spoilable: Spoilable, clock: ManualClock) -> None:
    """LEASE-17, LEASE-18: a damaged record changes neither the start after a jump of the clock nor the hold."""
    store, url = spoilable
    if url == "memory://":
        return  # nothing of it is there after a restart
    damages = lock_damages(store, url)
    spoilt = [key(f"spoilt-{number}") for number in range(len(damages))]
    alive, over = key("alive"), key("over")
    await run_commands(store.locks, *((one, Acquire(digest(one.key), 3_600)) for one in spoilt))
    await run_commands(store.locks, (alive, Acquire(digest("a"), 60)), (over, Acquire(digest("a"), 1)))
    for one, damage in zip(spoilt, damages, strict=True):
        await damage(one)
    clock.advance(3_000)
    await run_commands(store.locks, (key("newest"), Release(digest("a"))))
    await store.close()
    clock.reboot()
    clock.is_synchronised = False
    clock.jump(120_000)

    again = await open_store(url, clock)
    commands = [(one, Acquire(digest("b"), 60)) for one in (alive, over, *spoilt)]
    held, taken, *refused = await run_commands(again.locks, *commands)
    assert isinstance(held, Refused)
    assert held.code == "lock_held"
    assert isinstance(taken, Granted)
    assert [one.code for one in refused if isinstance(one, Refused)] == ["lock_record_damaged"] * len(spoilt)
    page = await again.locks.list_locks(LockQuery(PROJECT, 10, held=True))
    assert [one for one, _ in page.records] == ["alive", "over"]
    assert await again.locks.count_held() >= 2
    assert again.locks.takeover_hold() is not None
    clock.advance(58_000)
    (acquired,) = await run_commands(again.locks, (alive, Acquire(digest("b"), 60)))
    assert isinstance(acquired, Granted)
    await again.close()


async def test_damage_is_named_and_shown_without_digests(spoilable: Spoilable) -> None:
    """LEASE-18, LEASE-15, CLI-31, KEEP-1: `damaged` finds each record; a copy stops at the first."""
    store, url = spoilable
    damages = lock_damages(store, url)
    spoilt = [key(f"spoilt-{number}") for number in range(len(damages))]
    await run_commands(store.locks, *((one, Acquire(digest(one.key), 60, "host/1")) for one in spoilt))
    for one, damage in zip(spoilt, damages, strict=True):
        await damage(one)
    assert store.snapshot is not None
    found = [error async for error in store.snapshot.damaged()]
    assert {error.record for error in found} == {f"lock/{one.project_id}/{one.key}" for one in spoilt}
    for error in found:
        assert error.reason
        assert len(error.stored) <= STORED_LENGTH_MAX
        assert not any(digest(one.key).hex() in error.stored.lower() for one in spoilt)
        assert "AAECAwQFBgc=" not in error.stored
    if not isinstance(store.locks, MemoryStore):
        assert any("fencing_token" in error.stored for error in found)
    with pytest.raises(StoreUnavailableError, match=f"volcano-locks doctor --repair lock/{PROJECT}/spoilt-"):
        _ = [page async for page in store.snapshot.pages()]


async def spoil_project(spoilable: Spoilable) -> None:
    store, url = spoilable
    sql = "UPDATE {}project SET created_at_ms = -1 WHERE id = {}"
    if url.startswith("sqlite"):
        await run_sqlite(store, sql.format("", "?"), (FIRST.id,))
        await run_sqlite(store, "UPDATE project SET name = CAST(x'ff' AS TEXT) WHERE id = ?", (FIRST.id,))
    elif url.startswith("postgres"):
        run_postgres(url, sql.format("volcano_locks.", "%s"), (FIRST.id,))
    else:
        await put_etcd(store, f"project/{FIRST.id}".encode(), b"{}")


async def spoil_key(spoilable: Spoilable) -> None:
    store, url = spoilable
    sql = "UPDATE {}service_key SET expires_at_ms = -5 WHERE id = {}"
    if url.startswith("sqlite"):
        await run_sqlite(store, sql.format("", "?"), (KEY.id,))
        await run_sqlite(store, "UPDATE service_key SET permissions = CAST(x'ff' AS TEXT) WHERE id = ?", (KEY.id,))
    elif url.startswith("postgres"):
        run_postgres(url, sql.format("volcano_locks.", "%s"), (KEY.id,))
    else:
        await put_etcd(store, f"service-key/{KEY.id}".encode(), b'{"secrets":[]}')


async def test_a_damaged_project_fails_alone(spoilable: Spoilable) -> None:
    """LEASE-18, case 63."""
    store, url = spoilable
    if url == "memory://":
        return  # its objects cannot be damaged
    registry = store.registry
    await spoil_project(spoilable)
    page = await registry.projects(limit=10, cursor=None)
    assert page.items == [SECOND]
    assert [error.record for error in page.damaged] == [f"project/{FIRST.id}"]
    for asked in (registry.project(FIRST.id), registry.credential(digest(KEY.name))):
        with pytest.raises(DamagedRecordError) as caught:
            await asked
        assert caught.value.record == f"project/{FIRST.id}"
    assert await registry.project(SECOND.id) == SECOND
    assert store.snapshot is not None
    assert [error.record async for error in store.snapshot.damaged()] == [f"project/{FIRST.id}"]


async def test_a_damaged_service_key_fails_alone(spoilable: Spoilable) -> None:
    """LEASE-18, case 63: it grants nothing, and the chore that stores last uses goes on with the others."""
    store, url = spoilable
    if url == "memory://":
        return  # its objects cannot be damaged
    registry = store.registry
    await spoil_key(spoilable)
    page = await registry.service_keys(FIRST.id, limit=10, cursor=None)
    assert page.items == [OTHER_KEY]
    assert [error.record for error in page.damaged] == [f"service-key/{KEY.id}"]
    for asked in (
        registry.service_key(FIRST.id, KEY.id),
        registry.credential(digest(KEY.name)),
        registry.replace_secret(FIRST.id, KEY.id, NewSecret(digest("new"), "sk-new")),
    ):
        with pytest.raises(DamagedRecordError) as caught:
            await asked
        assert caught.value.code == "lock_record_damaged"
    assert await registry.credential(digest("new")) is None
    await registry.touch_service_keys({KEY.id: 7, OTHER_KEY.id: 8})
    assert (await registry.service_key(FIRST.id, OTHER_KEY.id)).last_used_at_ms == 8
    assert store.snapshot is not None
    assert [error.record async for error in store.snapshot.damaged()] == [f"service-key/{KEY.id}"]


async def test_damaged_records_of_nodes_in_etcd_disturb_no_node(clock: ManualClock) -> None:
    """LEASE-18, case 63: instants, signals, quotas and secrets too; `damaged` names those that nothing rewrites."""
    url = etcd.shared().url()
    store = await open_store(url, clock)
    await store.registry.add_project(FIRST)
    for path in (b"node/gone", b"signal/gone", b"purger", f"quota/{FIRST.id}".encode(), b"secret/" + b"a" * 64):
        await put_etcd(store, path, b"\xff not ours")
    await store.locks.ready()
    await store.locks.purge(limit=1)
    assert store.quotas is not None
    assert await store.quotas.take(FIRST.id, clock.now_ms(), limit=5, wanted=5) == 5
    with pytest.raises(DamagedRecordError):
        await store.registry.credential(b"\xaa" * 32)
    second = await open_store(url, clock)
    await second.locks.ready()
    await run_commands(second.locks, (key("a"), Acquire(digest("a"), 30)))
    assert second.snapshot is not None
    assert {error.record async for error in second.snapshot.damaged()} == {"node/gone", "secret/aaaaaaaa"}
    await second.close()
    await store.close()


OPERATOR = Act(1_000, "command_line", None, "ann", None, None, new_unique())


async def repairs_named(store: OpenStore) -> list[str | None]:
    """AUDIT-1: the records whose repairs the audit names, the latest first."""
    entries = await store.audit.page(AuditQuery(10))
    assert {(entry.action, entry.actor_name) for entry in entries} == {("record_repaired", "ann")}
    return [entry.target_name for entry in entries]


async def test_a_repaired_lock_is_free_with_a_higher_fencing_token(spoilable: Spoilable) -> None:
    """CLI-31, LEASE-3, LEASE-18: the only record that changes is the one that was named."""
    store, url = spoilable
    if url == "memory://":
        return  # nothing of it is there after a restart
    spoilt, other = key("spoilt"), key("other")
    (granted, kept) = await run_commands(
        store.locks, (spoilt, Acquire(digest("a"), 3_600)), (other, Acquire(digest("b"), 3_600))
    )
    await lock_damages(store, url)[0](spoilt)
    await store.close()
    record = f"lock/{PROJECT}/spoilt"
    assert await find_damaged(url, f"lock/{PROJECT}/other") is None
    assert await find_damaged(url, record) is not None
    await repair(url, record, by=OPERATOR)
    assert await find_damaged(url, record) is None
    again = await open_store(url, SystemClock())
    assert await repairs_named(again) == [record]
    (before, acquired) = await run_commands(again.locks, (spoilt, Read()), (spoilt, Acquire(digest("c"), 30)))
    assert before == State(None)
    assert isinstance(granted, Granted)
    assert isinstance(acquired, Granted)
    assert acquired.fencing_token > granted.fencing_token
    assert isinstance(kept, Granted)
    (record_of_other,) = await read_records(again.locks, other)
    assert isinstance(record_of_other, Held)
    assert record_of_other.fencing_token == kept.fencing_token
    await again.close()


async def test_a_repaired_project_and_key_can_be_used_and_replaced(spoilable: Spoilable) -> None:
    """CLI-31: a project keeps what can be read, and its keys; a damaged key is revoked, its name free again."""
    store, url = spoilable
    if url == "memory://":
        return  # its objects cannot be damaged
    await spoil_project(spoilable)
    await spoil_key(spoilable)
    await store.close()
    for record in (f"project/{FIRST.id}", f"service-key/{KEY.id}"):
        assert await find_damaged(url, record) is not None
        await repair(url, record, by=replace_field(OPERATOR, unique=new_unique()))
        assert await find_damaged(url, record) is None
    again = await open_store(url, SystemClock())
    assert await repairs_named(again) == [f"service-key/{KEY.id}", f"project/{FIRST.id}"]
    project = await again.registry.project(FIRST.id)
    assert project.requests_per_minute == FIRST.requests_per_minute
    assert project.name == (f"repaired-{FIRST.id[:8]}" if url.startswith("sqlite") else FIRST.name)
    assert (await again.registry.service_keys(FIRST.id, limit=10, cursor=None)).items == [OTHER_KEY]
    assert await again.registry.credential(digest(KEY.name)) is None
    assert await again.registry.credential(digest(OTHER_KEY.name)) is not None
    await again.registry.add_service_key(replace(KEY, id=KEY.id[:-1] + "c"), digest(KEY.name))
    await again.registry.delete_project(FIRST.id)
    await again.close()
