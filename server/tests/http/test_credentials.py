"""Who may call: kinds of credentials, their ends, and how soon a change is felt."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from volcano_locks_server.http import auth
from volcano_locks_server.http.auth import CREDENTIAL_SECONDS_MAX, Authenticator
from volcano_locks_server.ports.registry import Credential
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError

from .conftest import ADMIN_TOKEN, House, new_token, problem

JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln"
UNKNOWN = "sk-" + "A" * 43


@pytest.mark.parametrize(
    "authorization",
    [
        None, "", "Bearer", "Bearer ", f"Basic {UNKNOWN}", UNKNOWN, f"Bearer {UNKNOWN}", "Bearer sk-short",
        f"Bearer {UNKNOWN} x", f"Bearer {UNKNOWN}, Bearer {UNKNOWN}", "Bearer nonsense",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/locks/a", "/projects"])
async def test_no_good_credential_is_401(house: House, path: str, authorization: str | None) -> None:
    """HTTP-14, ADMIN-1: with the way to present one, and without a quota's headers."""
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = await house.ask("GET", path, key=None, headers=headers)
    assert problem(answer) == (401, "invalid_credentials")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "x-ratelimit-limit" not in answer.headers


async def test_the_case_of_the_scheme_does_not_matter(house: House) -> None:
    """HTTP-14."""
    for scheme in ("bearer", "BEARER", "Bearer"):
        answer = await house.ask(
            "GET", "/locks/a", key=None, headers={"Authorization": f"{scheme} {house.service_key}"}
        )
        assert answer.status_code == 200


async def test_a_key_that_comes_twice_is_none(house: House) -> None:
    """HTTP-14."""
    headers = [("Authorization", f"Bearer {house.service_key}")] * 2
    assert problem(await house.client.get("/locks/a", headers=headers)) == (401, "invalid_credentials")


@pytest.mark.parametrize("credential", ["ak-0123456789", JWT, ADMIN_TOKEN])
async def test_a_credential_of_another_kind_is_403(house: House, credential: str) -> None:
    """HTTP-15."""
    assert problem(await house.ask("GET", "/locks/a", key=credential)) == (403, "service_key_required")


async def test_the_admin_api_takes_the_admin_token_alone(house: House) -> None:
    """ADMIN-1: a good key of another kind is 403."""
    for credential in (house.service_key, "ak-0123456789", JWT):
        assert problem(await house.ask("GET", "/projects", key=credential)) == (403, "admin_token_required")


async def test_a_key_without_permission_is_403(house: House) -> None:
    """HTTP-15, ADMIN-6, QUOTA-2: a permission of another service grants nothing here, and the request counts."""
    key = (await house.new_key(permissions=["functions.invoke", "locks"]))["key_value"]
    for method, path in (("GET", "/locks/a"), ("GET", "/locks/.bad"), ("GET", "/locks"), ("DELETE", "/locks/a")):
        answer = await house.ask(method, path, key=key)
        assert problem(answer) == (403, "missing_permission")
    assert answer.headers["x-ratelimit-remaining"] == "596"


class _OneKey:
    """A registry in which every secret opens the same key."""

    def __init__(self, key: Any, project: Any) -> None:
        self.key = key
        self.project = project
        self.asked = 0
        self.gate: asyncio.Event | None = None

    async def credential(self, _digest: bytes) -> Credential:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        return Credential(self.key, self.project, None)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was not to be asked for")


async def test_a_revoked_key_stops_at_once(house: House) -> None:
    """ADMIN-9, HTTP-14: on this node at the next request, also while it is remembered."""
    key = await house.new_key()
    assert (await house.ask("GET", "/locks/a", key=key["key_value"])).status_code == 200
    await house.admin("DELETE", f"/projects/{house.project_id}/service-keys/{key['id']}")
    assert problem(await house.ask("GET", "/locks/a", key=key["key_value"])) == (401, "invalid_credentials")


async def test_a_key_revoked_elsewhere_stops_within_five_seconds(house: House) -> None:
    """ADMIN-9: what another node changes in the same store is seen when what is remembered has aged."""
    assert (await house.ask("GET", "/locks/a")).status_code == 200
    (key,) = (await house.server.store.registry.service_keys(house.project_id, limit=10, cursor=None)).items
    await house.server.store.registry.delete_service_key(house.project_id, key.id)
    house.clock.advance(CREDENTIAL_SECONDS_MAX * 1_000)
    assert CREDENTIAL_SECONDS_MAX <= 5
    assert problem(await house.ask("GET", "/locks/a")) == (401, "invalid_credentials")


async def test_a_lookup_that_began_before_a_change_is_not_remembered(house: House) -> None:
    """ADMIN-9: a change while the store is being asked is not undone by the answer."""
    slow, authenticator = await slow_authenticator(house)
    assert slow.gate is not None
    header = f"Bearer {UNKNOWN}".encode()
    together = [asyncio.create_task(authenticator.principal(header)) for _ in range(3)]
    while not slow.asked:
        await asyncio.sleep(0)
    authenticator.invalidate()
    slow.gate.set()
    await asyncio.gather(*together)
    assert slow.asked == 1  # those that came together shared one question
    assert authenticator.cached_principal(header) is None
    await authenticator.principal(header)
    assert slow.asked == 2
    assert authenticator.cached_principal(header) is not None


async def slow_authenticator(house: House) -> tuple["_OneKey", Authenticator]:
    """Authenticator over a registry that answers only while its gate is open."""
    registry = house.server.store.registry
    (key,) = (await registry.service_keys(house.project_id, limit=10, cursor=None)).items
    slow = _OneKey(key, await registry.project(house.project_id))
    slow.gate = asyncio.Event()
    return slow, Authenticator(slow, house.clock, ADMIN_TOKEN)


async def test_a_crowd_of_made_up_keys_neither_fills_the_store_s_queue_nor_shuts_out_a_good_key(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: unknown secrets wait outside; a key whose answer has aged is asked for again all the same."""
    monkeypatch.setattr(auth, "LOOKUPS_MAX", 40)
    slow, authenticator = await slow_authenticator(house)
    assert slow.gate is not None
    good = f"Bearer {UNKNOWN}".encode()
    slow.gate.set()
    await authenticator.principal(good)
    slow.gate.clear()
    house.clock.advance(CREDENTIAL_SECONDS_MAX * 1_000)
    crowd = [asyncio.create_task(authenticator.principal(f"Bearer sk-{n:043}".encode())) for n in range(40)]
    async with asyncio.timeout(30):
        while slow.asked <= auth.LOOKUPS_AT_ONCE or len(authenticator._lookups) < 40:
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert slow.asked == 1 + auth.LOOKUPS_AT_ONCE
    with pytest.raises(LockError, match="too many unknown credentials"):
        await authenticator.principal(b"Bearer sk-" + b"B" * 43)
    asking = asyncio.create_task(authenticator.principal(good))
    await asyncio.sleep(0)
    slow.gate.set()
    assert (await asking).project_id == house.project_id
    await asyncio.gather(*crowd)


@pytest.mark.real_time
async def test_a_store_that_hangs_does_not_hang_who_presents_a_key(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-16: the answer is unavailable, not silence; the question goes on for those who ask later."""
    monkeypatch.setattr(auth, "LOOKUP_SECONDS_MAX", 0.02)
    slow, authenticator = await slow_authenticator(house)
    with pytest.raises(StoreUnavailableError) as caught:
        await authenticator.principal(f"Bearer {UNKNOWN}".encode())
    assert caught.value.cause_code == "lookup_late"
    assert slow.gate is not None
    monkeypatch.setattr(auth, "LOOKUP_SECONDS_MAX", 30.0)
    slow.gate.set()
    assert (await authenticator.principal(f"Bearer {UNKNOWN}".encode())).project_id == house.project_id
    assert slow.asked == 1


async def test_a_deletion_that_fails_half_way_is_felt_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADMIN-9: what the store could not finish may have been done in part, or whole."""

    def no_room(_project_id: str) -> None:
        raise StoreUnavailableError("disk_full", "the disk is full")

    assert (await house.ask("GET", "/locks/a")).status_code == 200
    monkeypatch.setattr(house.server.store.locks, "delete_locks_of", no_room)
    answer = await house.admin("DELETE", f"/projects/{house.project_id}")
    assert problem(answer) == (503, "lock_service_unavailable")
    assert problem(await house.ask("GET", "/locks/a")) == (401, "invalid_credentials")


async def test_a_key_stops_at_its_expiry(house: House) -> None:
    """ADMIN-7: at that instant, although it is remembered."""
    ends = datetime.fromtimestamp(house.clock.now_ms() / 1_000 + 2, UTC).isoformat()
    key = (await house.new_key(expires_at=ends))["key_value"]
    house.clock.advance(1_999)
    assert (await house.ask("GET", "/locks/a", key=key)).status_code == 200
    house.clock.advance(1)
    assert problem(await house.ask("GET", "/locks/a", key=key)) == (401, "invalid_credentials")


async def test_an_old_secret_lives_as_long_as_it_was_given(house: House) -> None:
    """ADMIN-8: both work in the overlap; without one the old ends at once."""
    key = await house.new_key()
    path = f"/projects/{house.project_id}/service-keys/{key['id']}/regenerate"
    second = (await house.admin("POST", path, json={"keep_old_seconds": 3})).json()
    for secret in (key["key_value"], second["key_value"]):
        assert (await house.ask("GET", "/locks/a", key=secret)).status_code == 200
    house.clock.advance(3_000)
    assert problem(await house.ask("GET", "/locks/a", key=key["key_value"])) == (401, "invalid_credentials")
    third = (await house.admin("POST", path)).json()
    assert problem(await house.ask("GET", "/locks/a", key=second["key_value"])) == (401, "invalid_credentials")
    assert (await house.ask("GET", "/locks/a", key=third["key_value"])).status_code == 200


async def test_unknown_revoked_and_expired_sound_the_same(house: House) -> None:
    """HTTP-14."""
    key = await house.new_key()
    await house.admin("DELETE", f"/projects/{house.project_id}/service-keys/{key['id']}")
    revoked = await house.ask("GET", "/locks/a", key=key["key_value"])
    unknown = await house.ask("GET", "/locks/a", key=UNKNOWN)
    assert revoked.json() == unknown.json()


async def test_a_deleted_project_has_no_keys_and_no_locks(house: House) -> None:
    """ADMIN-9."""
    await house.acquire("a", new_token())
    await house.admin("DELETE", f"/projects/{house.project_id}")
    assert problem(await house.ask("GET", "/locks/a")) == (401, "invalid_credentials")
    assert await house.server.store.locks.count_held() == 0
