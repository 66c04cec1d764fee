"""What every store promises about the audit: AUDIT-1 to AUDIT-3."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from volcano_locks_server.ports.admin_tokens import AdminToken
from volcano_locks_server.ports.audit import ENTRIES_DAYS, AuditLog, AuditQuery, session_entry
from volcano_locks_server.ports.audit_entry import Act, AuditEntry, entry_of, new_unique
from volcano_locks_server.ports.lock_store import RecordKey, StepResult
from volcano_locks_server.ports.registry import NewSecret, Project, ServiceKey
from volcano_locks_server.ports.session_store import SessionLimits, StoredSession
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import ManualClock

from .conftest import url_of
from .record_damage import run_postgres, run_sqlite
from .store_actions import digest
from .test_admin_tokens import new_url, nothing

PROJECT = Project("p-1", "first", 600, 1)
KEY = ServiceKey("k-1", "p-1", "worker", "sk-aaaaaaaa", ("*",), 1)
TOKEN = AdminToken("6f1c2a34-0000-4000-8000-00000000000a", "ann", "admin-aaaaaaaa", 1_000)
ANN = Act(5_000, "admin_token", "t-1", "ann", "192.0.2.1", "request-1", "", "it hung")
DAY_MS = 86_400_000


def by(at_ms: int = 5_000) -> Act:
    return replace(ANN, at_ms=at_ms, unique=new_unique())


def note(name: str, at_ms: int, project_id: str | None = None) -> AuditEntry:
    return entry_of(by(at_ms), "noted", ("thing", None, name), project_id=project_id)


async def all_of(audit: AuditLog, **query: Any) -> Sequence[AuditEntry]:
    """The entries, the earliest first."""
    return list(reversed(await audit.page(AuditQuery(100, **query))))


async def seen(audit: AuditLog) -> list[tuple[str, Any, Any]]:
    return [(entry.action, entry.before, entry.after) for entry in await all_of(audit)]


async def test_an_entry_is_kept_as_it_is(store: OpenStore) -> None:
    entry = entry_of(
        by(), "noted", ("thing", "id", "name"), project_id="p-1", before={"a": 1}, after={"b": ["c", None]}
    )
    await store.audit.append(entry)
    bare = AuditEntry("0" * 15 + "-" + "0" * 16, 0, "noted", "server", None, "(server)", *[None] * 2, "x", *[None] * 6)
    await store.audit.append(bare)
    assert await all_of(store.audit) == [bare, entry]


async def test_changes_of_projects_and_keys_are_named_with_what_was_there_before(store: OpenStore) -> None:
    """AUDIT-1, AUDIT-2."""
    registry = store.registry
    await registry.add_project(PROJECT, by=by())
    await registry.change_project("p-1", name=None, requests_per_minute=7, by=by())
    await registry.add_service_key(KEY, digest("one"), by=by())
    new = NewSecret(digest("two"), "sk-bbbbbbbb", 9_000)
    await registry.replace_secret("p-1", "k-1", new, by=by())
    await registry.replace_secret("p-1", "k-1", NewSecret(digest("three"), "sk-cccccccc", None), by=by())
    await registry.delete_service_key("p-1", "k-1", by=by())
    await registry.delete_project("p-1", by=by())
    facts = {"key_prefix": "sk-aaaaaaaa", "permissions": ["*"], "expires_at_ms": None}
    rotated, again = facts | {"key_prefix": "sk-bbbbbbbb"}, facts | {"key_prefix": "sk-cccccccc"}
    assert await seen(store.audit) == [
        ("project_created", None, {"name": "first", "requests_per_minute": 600}),
        (
            "project_changed",
            {"name": "first", "requests_per_minute": 600},
            {"name": "first", "requests_per_minute": 7},
        ),
        ("key_created", None, facts),
        ("key_rotated", facts, rotated | {"old_secret_good_until_ms": 9_000}),
        ("key_rotated", rotated | {"old_secret_good_until_ms": 9_000}, again),
        ("key_revoked", again, None),
        ("project_deleted", {"name": "first", "requests_per_minute": 7}, None),
    ]
    for entry in await all_of(store.audit, project_id="p-1"):
        assert (entry.actor_name, entry.address, entry.request_id, entry.reason, entry.at_ms) == (
            "ann",
            "192.0.2.1",
            "request-1",
            "it hung",
            5_000,
        )
        assert digest("one").hex() not in str(entry)


async def test_what_was_refused_is_not_named(store: OpenStore) -> None:
    """AUDIT-2: the entry shares the transaction's fate."""
    registry = store.registry
    await registry.add_project(PROJECT)
    await registry.add_service_key(KEY, digest("one"))
    await store.admin_tokens.add(TOKEN, digest("ann"))
    for refused in (
        registry.add_project(with_fields(PROJECT, id="p-2"), by=by()),
        registry.change_project("p-9", name="x", requests_per_minute=None, by=by()),
        registry.add_service_key(with_fields(KEY, id="k-2"), digest("two"), by=by()),
        registry.replace_secret("p-1", "k-9", NewSecret(digest("two"), "sk-b"), by=by()),
        registry.delete_service_key("p-1", "k-9", by=by()),
        registry.delete_project("p-9", by=by()),
        store.admin_tokens.add(with_fields(TOKEN, id="another"), digest("bob"), by=by()),
        store.admin_tokens.delete("6f1c2a34-0000-4000-8000-00000000000b", by=by()),
    ):
        with pytest.raises(LockError):
            await refused
    assert await seen(store.audit) == []


async def test_tokens_sessions_and_lock_steps_are_named(store: OpenStore) -> None:
    """AUDIT-1, AUDIT-2."""
    await store.admin_tokens.add(TOKEN, digest("ann"), by=by())
    await store.admin_tokens.delete(TOKEN.id, by=by())
    session = StoredSession(digest("s"), "session", "service_key", "k-1", digest("one"), 9_000)
    limits = SessionLimits(3, 3)
    await store.sessions.add(session, limits, 1, audit=session_entry(by(), session, "p-1", begins=True))
    for _ in range(2):
        await store.sessions.take(digest("s"), audit=session_entry(by(), session, "p-1", begins=False))
    lock = RecordKey("p-1", LockKey("nightly"))
    for changed in ({lock: Free(1, 1)}, {}):
        await store.locks.update(
            [lock],
            lambda _records, _now, changed=changed: StepResult(  # type: ignore[misc]
                changed, [], audit=[note("step", 6_000, "p-1")]
            ),
        )
    facts = {"token_prefix": "admin-aaaaaaaa"}
    assert await seen(store.audit) == [
        ("admin_token_created", None, facts),
        ("admin_token_revoked", facts, None),
        ("signed_in", None, {"good_until_ms": 9_000}),
        ("signed_out", {"good_until_ms": 9_000}, None),
        ("noted", None, None),
        ("noted", None, None),
    ]


async def test_a_failed_step_names_nothing(store: OpenStore) -> None:
    lock = RecordKey("p-1", LockKey("nightly"))

    def fail(_records: object, _now_ms: int) -> StepResult:
        raise ZeroDivisionError

    with pytest.raises(Exception):  # noqa: B017, PT011 - each store wraps it in its own way
        await store.locks.update([lock], fail)
    assert await seen(store.audit) == []


async def test_pages_are_the_latest_first_and_by_period_and_project(store: OpenStore) -> None:
    """AUDIT-4."""
    for number in range(6):
        await store.audit.append(note(f"n{number}", 1_000 * (number // 2), f"p-{number % 2}"))
    await store.audit.append(note("none", 9_000))

    async def names(limit: int = 100, **query: Any) -> list[str | None]:
        return [entry.target_name for entry in await store.audit.page(AuditQuery(limit, **query))]

    assert await names() == ["none", "n5", "n4", "n3", "n2", "n1", "n0"]
    assert await names(project_id="p-1") == ["n5", "n3", "n1"]
    assert await names(from_ms=1_000) == ["none", "n5", "n4", "n3", "n2"]
    assert await names(to_ms=1_000) == ["n1", "n0"]
    assert await names(from_ms=1_000, to_ms=2_000, project_id="p-0") == ["n2"]
    walked: list[str | None] = []
    before_id = None
    while page := await store.audit.page(AuditQuery(2, before_id=before_id)):
        walked += [entry.target_name for entry in page]
        before_id = page[-1].id
    assert walked == await names()


async def test_the_oldest_entries_go_first(store: OpenStore) -> None:
    """AUDIT-3."""
    now_ms = (ENTRIES_DAYS + 10) * DAY_MS
    for number in range(6):
        await store.audit.append(note(f"n{number}", (8 + number) * DAY_MS, "p-1"))
    assert await store.audit.purge(now_ms) == 2
    assert [one.target_name for one in await all_of(store.audit)] == ["n2", "n3", "n4", "n5"]
    assert await store.audit.purge(now_ms, entries_max=1) == 3
    assert [one.target_name for one in await all_of(store.audit, project_id="p-1")] == ["n5"]
    assert await store.audit.purge(now_ms, entries_max=1) == 0


async def test_a_project_displaces_only_its_own_entries(store: OpenStore) -> None:
    """AUDIT-5: those without a project count as one more; what a project leaves of its share goes to the others."""
    entries = [("p-1", 0), ("p-1", 1), (None, 2), (None, 3), ("p-2", 4), *(("p-3", number) for number in range(5, 305))]
    for project_id, number in entries:
        await store.audit.append(note(f"n{number}", 1_000 + number, project_id))
    assert await store.audit.purge(2_000, entries_max=305) == 0
    assert await store.audit.purge(2_000, entries_max=12) == 293
    kept = [one.target_name for one in await all_of(store.audit)]
    assert kept == [f"n{number}" for number in (0, 1, 2, 3, 4, *range(298, 305))]
    assert [one.target_name for one in await all_of(store.audit, project_id="p-3")] == kept[5:]
    assert await store.audit.purge(2_000, entries_max=4) == 8
    assert [one.target_name for one in await all_of(store.audit)] == ["n1", "n3", "n4", "n304"]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "etcd"])
async def test_a_copy_has_the_audit(store: OpenStore, kind: str, tmp_path: Path, clock: ManualClock) -> None:
    """AUDIT-3: in order, and a store that has one is not empty."""
    for number in range(205):  # more than etcd reads at once
        await store.audit.append(note(f"n{number}", number, "p-1"))
    url = f"sqlite:///{tmp_path / 'target.db'}" if kind == "sqlite" else new_url(kind)
    target = await open_store(url, clock)
    try:
        assert store.snapshot is not None
        assert target.snapshot is not None
        await target.snapshot.load(store.snapshot.pages(), await store.snapshot.newest_ms())
        copied = [entry async for page in target.snapshot.pages() for entry in page]
        assert [entry.target_name for entry in copied if isinstance(entry, AuditEntry)] == [
            f"n{number}" for number in range(205)
        ]
        assert len(await target.audit.page(AuditQuery(300, "p-1"))) == 205
        with pytest.raises(StoreUnavailableError):
            await target.snapshot.load(nothing(), 0)
    finally:
        await target.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_entry_cannot_be_changed(kind: str, request: pytest.FixtureRequest, clock: ManualClock) -> None:
    """AUDIT-3: not even by a statement of the store's own."""
    url = url_of(kind, request)
    store = await open_store(url, clock)
    await store.audit.append(note("first", 1_000))
    with suppress(Exception):
        if kind == "sqlite":
            await run_sqlite(store, "UPDATE audit_entry SET actor_name = 'bob'", ())
        else:
            run_postgres(url, "UPDATE volcano_locks.audit_entry SET actor_name = 'bob'", ())
    assert [one.actor_name for one in await all_of(store.audit)] == ["ann"]
    await store.close()
