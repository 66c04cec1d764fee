"""What every store promises about projects and service keys."""

from dataclasses import replace

import pytest

from volcano_locks_server.ports.registry import Credential, NewSecret, Project, Registry, ServiceKey
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.rules.values import PERMISSION_LENGTH_MAX, PERMISSIONS_MAX
from volcano_locks_server.stores import OpenStore

from .store_actions import digest, key, read_records, write_records

P1 = Project("p-1", "first", 600, 1_000)
P2 = Project("p-2", "second", 0, 2_000)
K1 = ServiceKey("k-1", "p-1", "worker", "sk-abcd", ("*",), 1_001)
K2 = ServiceKey("k-2", "p-1", "cron", "sk-efgh", ("*", "locks.manage"), 1_002, expires_at_ms=9_000)


@pytest.fixture
def registry(store: OpenStore) -> Registry:
    return store.registry


@pytest.fixture
async def keys(registry: Registry) -> Registry:
    """Two projects; the first has two keys with the secrets "one" and "two"."""
    await registry.add_project(P1)
    await registry.add_project(P2)
    await registry.add_service_key(K1, digest("one"))
    await registry.add_service_key(K2, digest("two"))
    return registry


async def refusal(awaitable: object) -> str:
    with pytest.raises(LockError) as caught:
        await awaitable  # type: ignore[misc]
    return caught.value.code


async def test_added_projects_and_keys_are_found(keys: Registry) -> None:
    assert await keys.project("p-1") == P1
    assert await keys.service_key("p-1", "k-2") == K2
    assert await keys.credential(digest("one")) == Credential(K1, P1, None)
    assert await keys.credential(digest("two")) == Credential(K2, P1, 9_000)
    assert await keys.credential(digest("never")) is None


async def test_permissions_of_other_services_are_stored(keys: Registry) -> None:
    """ADMIN-6: up to the maximal number and length."""
    theirs = tuple(f"{number:02}".rjust(PERMISSION_LENGTH_MAX, "x") for number in range(PERMISSIONS_MAX - 3))
    service_key = replace(K1, id="k-3", name="other", permissions=("db.*", "functions.invoke", "locks.read", *theirs))
    await keys.add_service_key(service_key, digest("three"))
    assert await keys.service_key("p-1", "k-3") == service_key
    assert await keys.credential(digest("three")) == Credential(service_key, P1, None)
    assert service_key in (await keys.service_keys("p-1", limit=5, cursor=None)).items


async def test_unknown_ids_are_not_found(keys: Registry) -> None:
    assert await refusal(keys.project("p-9")) == "not_found"
    assert await refusal(keys.change_project("p-9", name="x", requests_per_minute=None)) == "not_found"
    assert await refusal(keys.delete_project("p-9")) == "not_found"
    assert await refusal(keys.add_service_key(replace(K1, id="k-9", project_id="p-9"), digest("9"))) == "not_found"
    assert await refusal(keys.service_key("p-1", "k-9")) == "not_found"
    assert await refusal(keys.service_keys("p-9", limit=5, cursor=None)) == "not_found"
    assert await refusal(keys.delete_service_key("p-1", "k-9")) == "not_found"


async def test_a_service_key_is_not_found_in_another_project(keys: Registry) -> None:
    assert await refusal(keys.service_key("p-2", "k-1")) == "not_found"
    assert await refusal(keys.delete_service_key("p-2", "k-1")) == "not_found"
    stolen = keys.replace_secret("p-2", "k-1", NewSecret(digest("x"), "sk-x"))
    assert await refusal(stolen) == "not_found"
    assert await keys.credential(digest("one")) == Credential(K1, P1, None)


async def test_names_are_unique(keys: Registry) -> None:
    assert await refusal(keys.add_project(replace(P1, id="p-3"))) == "name_taken"
    assert await refusal(keys.change_project("p-2", name="first", requests_per_minute=5)) == "name_taken"
    assert await keys.project("p-2") == P2
    assert await refusal(keys.add_service_key(replace(K1, id="k-3"), digest("three"))) == "name_taken"
    assert await keys.credential(digest("three")) is None
    await keys.add_service_key(replace(K1, id="k-3", project_id="p-2"), digest("three"))


async def test_ids_and_secrets_are_unique(keys: Registry) -> None:
    assert await refusal(keys.add_project(replace(P1, name="third"))) == "name_taken"
    assert await refusal(keys.add_service_key(replace(K1, name="other"), digest("three"))) == "name_taken"
    assert await refusal(keys.add_service_key(replace(K1, id="k-3", name="other"), digest("one"))) == "name_taken"
    assert await refusal(keys.service_key("p-1", "k-3")) == "not_found"


async def test_a_change_of_a_project_leaves_other_fields_alone(keys: Registry) -> None:
    assert await keys.change_project("p-1", name=None, requests_per_minute=7) == replace(P1, requests_per_minute=7)
    assert await keys.change_project("p-1", name="new", requests_per_minute=None) == Project("p-1", "new", 7, 1_000)
    assert await keys.change_project("p-1", name="new", requests_per_minute=0) == Project("p-1", "new", 0, 1_000)
    credential = await keys.credential(digest("one"))
    assert credential is not None
    assert credential.project == Project("p-1", "new", 0, 1_000)


async def test_deleting_a_project_deletes_its_keys_and_locks(keys: Registry, store: OpenStore) -> None:
    mine = [key(f"k{number}", "p-1") for number in range(1_200)]
    await write_records(store.locks, *((one, Free(1, 1)) for one in mine), (key("a", "p-2"), Free(2, 2)))
    await keys.delete_project("p-1")
    assert await refusal(keys.project("p-1")) == "not_found"
    assert await keys.credential(digest("one")) is None
    assert set(await read_records(store.locks, *mine)) == {None}
    assert await read_records(store.locks, key("a", "p-2")) == [Free(2, 2)]
    await keys.add_project(P1)
    assert (await keys.service_keys("p-1", limit=10, cursor=None)).items == []


async def test_the_secret_of_a_deleted_key_is_invalid(keys: Registry) -> None:
    await keys.delete_service_key("p-1", "k-1")
    assert await keys.credential(digest("one")) is None
    assert await keys.credential(digest("two")) is not None
    assert (await keys.service_keys("p-1", limit=10, cursor=None)).items == [K2]
    await keys.add_service_key(K1, digest("one"))


async def test_lists_are_in_order_of_creation(keys: Registry) -> None:
    added = [Project(f"q-{9 - number}", f"n{9 - number}", 1, 5) for number in range(6)]
    for project in added:
        await keys.add_project(project)
    seen, cursor = [], None
    while True:
        page = await keys.projects(limit=3, cursor=cursor)
        seen += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
        assert len(page.items) == 3
    assert seen == [P1, P2, *added]
    assert (await keys.service_keys("p-1", limit=2, cursor=None)).next_cursor is None


async def test_a_cursor_survives_deletions(keys: Registry) -> None:
    first = await keys.service_keys("p-1", limit=1, cursor=None)
    assert first.items == [K1]
    for deleted in ("k-1", "k-2"):
        await keys.delete_service_key("p-1", deleted)
    newer = replace(K1, id="k-3")
    await keys.add_service_key(newer, digest("three"))
    assert (await keys.service_keys("p-1", limit=1, cursor=first.next_cursor)).items == [newer]


@pytest.mark.parametrize(
    "cursor", ["", "x", "projects.", "projects.-1", "projects.1e3", "service-keys.1", "projects.٣"]
)
async def test_an_invalid_cursor_is_refused(keys: Registry, cursor: str) -> None:
    assert await refusal(keys.projects(limit=5, cursor=cursor)) == "invalid_request"


async def test_a_new_secret_ends_the_old_one_at_once_or_later(keys: Registry) -> None:
    changed = await keys.replace_secret("p-1", "k-1", NewSecret(digest("one'"), "sk-new", 5_000))
    assert changed == replace(K1, key_prefix="sk-new")
    assert await keys.credential(digest("one")) == Credential(changed, P1, 5_000)
    assert await keys.credential(digest("one'")) == Credential(changed, P1, None)
    await keys.replace_secret("p-1", "k-1", NewSecret(digest('one"'), "sk-new"))
    assert await keys.credential(digest("one")) is None
    assert await keys.credential(digest("one'")) is None
    assert await keys.credential(digest('one"')) == Credential(changed, P1, None)


async def test_only_the_previous_secret_stays_valid(keys: Registry) -> None:
    for number in range(3):
        await keys.replace_secret("p-1", "k-1", NewSecret(digest(f"s{number}"), "sk-n", 9 + number))
    good = [await keys.credential(digest(secret)) for secret in ("one", "s0", "s1", "s2")]
    assert [one and one.good_until_ms for one in good] == [None, None, 11, None]
    assert good[0] is None
    assert good[1] is None
    await keys.delete_service_key("p-1", "k-1")
    assert await keys.credential(digest("s1")) is None


async def test_a_key_shows_until_when_its_previous_secret_is_valid(keys: Registry) -> None:
    """ADMIN-8: the next rotation ends it."""
    assert await keys.old_secrets(["k-1", "k-2", "k-9"]) == {}
    for until_ms in (9, 5):
        await keys.replace_secret("p-1", "k-1", NewSecret(digest(f"s{until_ms}"), "sk-n", until_ms))
        assert await keys.old_secrets(["k-1", "k-2"]) == {"k-1": until_ms}
    await keys.replace_secret("p-1", "k-1", NewSecret(digest("last"), "sk-n"))
    assert await keys.old_secrets(["k-1"]) == {}
    assert await keys.old_secrets([]) == {}


async def test_a_previous_secret_expires_with_its_key(keys: Registry) -> None:
    await keys.replace_secret("p-1", "k-2", NewSecret(digest("new"), "sk-n", 99_000))
    old = await keys.credential(digest("two"))
    assert old is not None
    assert old.good_until_ms == 9_000


async def test_a_secret_in_use_cannot_be_assigned_again(keys: Registry) -> None:
    again = keys.replace_secret("p-1", "k-1", NewSecret(digest("two"), "sk-x"))
    assert await refusal(again) == "name_taken"
    assert await keys.credential(digest("one")) == Credential(K1, P1, None)


async def test_last_use_never_moves_back(keys: Registry) -> None:
    await keys.touch_service_keys({"k-1": 50, "k-9": 60})
    await keys.touch_service_keys({"k-1": 40, "k-2": 70})
    await keys.touch_service_keys({})
    page = await keys.service_keys("p-1", limit=10, cursor=None)
    assert [one.last_used_at_ms for one in page.items] == [50, 70]  # type: ignore[union-attr]
