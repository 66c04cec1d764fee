"""What every store promises about admin tokens (ADMIN-11, ADMIN-12)."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from testsupport.engines import etcd

from volcano_locks_server.ports.admin_tokens import AdminToken, AdminTokens
from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.registry import Project, ServiceKey
from volcano_locks_server.ports.snapshot import Entry, StoredAdminToken
from volcano_locks_server.rules.errors import DamagedRecordError, LockError, StoreUnavailableError
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.maintenance import find_damaged, repair
from volcano_locks_server.testing import ManualClock

from .conftest import url_of
from .record_damage import put_etcd, run_postgres, run_sqlite
from .sqlite.test_backup import backed_up, opened, restored
from .store_actions import digest

ANN = AdminToken("6f1c2a34-0000-4000-8000-00000000000a", "ann", "admin-aaaaaaaa", 1_000)
BOB = AdminToken("6f1c2a34-0000-4000-8000-00000000000b", "bob", "admin-bbbbbbbb", 2_000)


@pytest.fixture
async def tokens(store: OpenStore) -> AdminTokens:
    await store.admin_tokens.add(ANN, digest("ann"))
    await store.admin_tokens.add(BOB, digest("bob"))
    return store.admin_tokens


async def refusal(awaitable: object) -> str:
    with pytest.raises(LockError) as caught:
        await awaitable  # type: ignore[misc]
    return caught.value.code


async def all_of(tokens: AdminTokens) -> Sequence[AdminToken]:
    return (await tokens.page(limit=100, cursor=None)).items


async def test_a_token_is_found_by_its_digest(tokens: AdminTokens) -> None:
    assert await tokens.of_digest(digest("ann")) == ANN
    assert await tokens.of_digest(digest("never")) is None
    assert await all_of(tokens) == [ANN, BOB]


async def test_a_deleted_token_is_gone(tokens: AdminTokens) -> None:
    assert await tokens.delete(ANN.id) == ANN
    assert await tokens.of_digest(digest("ann")) is None
    assert await refusal(tokens.delete(ANN.id)) == "not_found"
    assert await all_of(tokens) == [BOB]
    await tokens.add(ANN, digest("ann"))
    assert await all_of(tokens) == [BOB, ANN]


async def test_names_ids_and_digests_are_unique(tokens: AdminTokens) -> None:
    new = AdminToken("6f1c2a34-0000-4000-8000-00000000000c", "carl", "admin-cccccccc", 3_000)
    assert await refusal(tokens.add(replace(new, name="ann"), digest("carl"))) == "name_taken"
    assert await refusal(tokens.add(replace(new, id=ANN.id), digest("carl"))) == "name_taken"
    assert await refusal(tokens.add(new, digest("bob"))) == "name_taken"
    assert await all_of(tokens) == [ANN, BOB]
    assert await tokens.of_digest(digest("carl")) is None


async def test_lists_are_in_order_of_creation(tokens: AdminTokens) -> None:
    added = [replace(ANN, id=f"6f1c2a34-0000-4000-8000-0000000000{end:02x}", name=f"n{9 - end}") for end in range(5)]
    for token in added:
        await tokens.add(token, digest(token.name))
    seen: list[AdminToken] = []
    cursor = None
    while True:
        page = await tokens.page(limit=3, cursor=cursor)
        seen += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [ANN, BOB, *added]
    assert await refusal(tokens.page(limit=3, cursor="projects.1")) == "invalid_request"


async def test_last_use_never_moves_back(tokens: AdminTokens) -> None:
    await tokens.touch({ANN.id: 50, "nothing": 60})
    await tokens.touch({ANN.id: 40, BOB.id: 70})
    await tokens.touch({})
    assert [one.last_used_at_ms for one in await all_of(tokens)] == [50, 70]
    used = await tokens.of_digest(digest("ann"))
    assert used is not None
    assert used.last_used_at_ms == 50


async def test_a_service_key_with_the_same_digest_is_another_credential(store: OpenStore) -> None:
    """ADMIN-1: neither works in place of the other."""
    await store.registry.add_project(Project("p-1", "first", 600, 1))
    await store.registry.add_service_key(ServiceKey("k-1", "p-1", "w", "sk-a", ("*",), 1), digest("one"))
    assert await store.admin_tokens.of_digest(digest("one")) is None
    await store.admin_tokens.add(ANN, digest("ann"))
    assert await store.registry.credential(digest("ann")) is None


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "etcd"])
async def test_a_copy_has_the_tokens(store: OpenStore, kind: str, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-1: and a store that has one is not empty."""
    await store.admin_tokens.add(ANN, digest("ann"))
    await store.admin_tokens.touch({ANN.id: 5})
    await store.admin_tokens.add(BOB, digest("bob"))
    url = f"sqlite:///{tmp_path / 'target.db'}" if kind == "sqlite" else None
    target = await open_store(url or new_url(kind), clock)
    try:
        assert store.snapshot is not None
        assert target.snapshot is not None
        await target.snapshot.load(store.snapshot.pages(), await store.snapshot.newest_ms())
        copied = [entry async for page in target.snapshot.pages() for entry in page]
        assert copied == [
            StoredAdminToken(replace(ANN, last_used_at_ms=5), digest("ann")),
            StoredAdminToken(BOB, digest("bob")),
        ]
        assert await target.admin_tokens.of_digest(digest("bob")) == BOB
        with pytest.raises(StoreUnavailableError) as caught:
            await target.snapshot.load(nothing(), 0)
        assert caught.value.cause_code == "store_not_empty"
    finally:
        await target.close()


def new_url(kind: str) -> str:
    from testsupport.engines import postgres

    match kind:
        case "postgres":
            return postgres.shared().url(postgres.shared().new_database())
        case "etcd":
            return etcd.shared().url()
    return "memory://"


async def nothing() -> AsyncIterator[Sequence[Entry]]:
    for page in ():
        yield page


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "etcd"])
async def test_a_damaged_token_fails_alone_and_can_be_repaired(
    kind: str, request: pytest.FixtureRequest, clock: ManualClock
) -> None:
    """LEASE-18, CLI-31: it opens nothing, and the repair revokes it."""
    url = url_of(kind, request)
    store = await open_store(url, clock)
    for token, secret in ((ANN, "ann"), (BOB, "bob")):
        await store.admin_tokens.add(token, digest(secret))
    spoil = "UPDATE {table} SET created_at_ms = -1 WHERE name = 'ann'"
    match kind:
        case "sqlite":
            await run_sqlite(store, spoil.format(table="admin_token"), ())
        case "postgres":
            run_postgres(url, spoil.format(table="volcano_locks.admin_token"), ())
        case "etcd":
            await put_etcd(store, f"admin-token/{ANN.id}".encode(), b'{"token":')
    with pytest.raises(DamagedRecordError):
        await store.admin_tokens.of_digest(digest("ann"))
    page = await store.admin_tokens.page(limit=5, cursor=None)
    assert page.items == [BOB]
    assert [error.record for error in page.damaged] == [f"admin-token/{ANN.id}"]
    await store.admin_tokens.touch({ANN.id: 7, BOB.id: 7})
    await store.close()
    found = await find_damaged(url, f"admin-token/{ANN.id}")
    assert found is not None
    assert digest("ann").hex() not in found.stored
    await repair(url, f"admin-token/{ANN.id}")
    assert await find_damaged(url, f"admin-token/{ANN.id}") is None
    store = await open_store(url, SystemClock())  # as the repair did
    assert await all_of(store.admin_tokens) == [replace(BOB, last_used_at_ms=7)]
    await store.admin_tokens.add(ANN, digest("ann"))
    await store.close()


async def test_a_restore_does_not_bring_back_a_revoked_token(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-8."""
    file = await opened(path, clock)
    for token, secret in ((ANN, "ann"), (BOB, "bob")):
        await file.admin_tokens.add(token, digest(secret))
    await backed_up(file, tmp_path / "backup")
    await file.admin_tokens.delete(ANN.id)
    await file.close()
    done = restored(tmp_path / "backup", path, clock)
    assert (done.contents.admin_tokens, done.keys_revoked) == (2, 1)
    file = await opened(path, clock)
    assert await all_of(file.admin_tokens) == [BOB]
    assert await file.admin_tokens.of_digest(digest("ann")) is None
    await file.close()
