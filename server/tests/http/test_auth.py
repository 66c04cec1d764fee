"""Authentication: kinds of credentials, their expiry, and how soon a change takes effect."""

import asyncio
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest

from volcano_locks_server.http import credential_cache
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.http.credential_cache import CREDENTIAL_SECONDS_MAX
from volcano_locks_server.ports.registry import Credential
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError

from .conftest import ADMIN_TOKEN, HttpHarness, both_ways, new_token, problem

over_socket = both_ways


JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln"
UNKNOWN = "sk-" + "A" * 43


@pytest.mark.parametrize(
    "authorization",
    [
        None, "", "Bearer", f"Basic {UNKNOWN}", UNKNOWN, f"Bearer {UNKNOWN}", "Bearer sk-short",
        f"Bearer {UNKNOWN} x", f"Bearer {UNKNOWN}, Bearer {UNKNOWN}", "Bearer nonsense",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/locks/a", "/projects"])
async def test_a_missing_or_invalid_credential_is_401(
    harness: HttpHarness, path: str, authorization: str | None
) -> None:
    """HTTP-14, ADMIN-1: with `WWW-Authenticate` and without quota headers."""
    headers = {} if authorization is None else {"Authorization": authorization}
    response = await harness.request("GET", path, key=None, headers=headers)
    assert problem(response) == (401, "invalid_credentials")
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert "x-ratelimit-limit" not in response.headers


async def test_the_case_of_the_scheme_does_not_matter(harness: HttpHarness) -> None:
    """HTTP-14."""
    for scheme in ("bearer", "BEARER", "Bearer"):
        response = await harness.request(
            "GET", "/locks/a", key=None, headers={"Authorization": f"{scheme} {harness.service_key}"}
        )
        assert response.status_code == 200


async def test_a_credential_that_is_sent_twice_is_invalid(harness: HttpHarness) -> None:
    """HTTP-14."""
    headers = [("Authorization", f"Bearer {harness.service_key}")] * 2
    assert problem(await harness.client.get("/locks/a", headers=headers)) == (401, "invalid_credentials")


@pytest.mark.parametrize("credential", ["ak-0123456789", JWT, ADMIN_TOKEN])
async def test_a_credential_of_another_kind_is_403(harness: HttpHarness, credential: str) -> None:
    """HTTP-15."""
    assert problem(await harness.request("GET", "/locks/a", key=credential)) == (403, "service_key_required")


async def test_the_admin_api_needs_the_admin_token(harness: HttpHarness) -> None:
    """ADMIN-1: a valid credential of another kind is 403."""
    for credential in (harness.service_key, "ak-0123456789", JWT):
        assert problem(await harness.request("GET", "/projects", key=credential)) == (403, "admin_token_required")


async def test_a_key_without_permission_is_403(harness: HttpHarness) -> None:
    """HTTP-15, ADMIN-6, QUOTA-2: a permission of another service grants nothing here, and the request counts."""
    key = (await harness.new_key(permissions=["functions.invoke", "locks"]))["key_value"]
    for method, path in (("GET", "/locks/a"), ("GET", "/locks/.bad"), ("GET", "/locks"), ("DELETE", "/locks/a")):
        response = await harness.request(method, path, key=key)
        assert problem(response) == (403, "missing_permission")
    assert response.headers["x-ratelimit-remaining"] == "596"


class SlowRegistry:
    """A registry in which every secret has the same key. Lookups wait for `gate`."""

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
        raise AssertionError(f"{name} must not be used here")


async def test_a_revoked_key_stops_at_once(harness: HttpHarness) -> None:
    """ADMIN-9, HTTP-14: on this node at the next request, although it was cached."""
    key = await harness.new_key()
    assert (await harness.request("GET", "/locks/a", key=key["key_value"])).status_code == 200
    await harness.admin("DELETE", f"/projects/{harness.project_id}/service-keys/{key['id']}")
    assert problem(await harness.request("GET", "/locks/a", key=key["key_value"])) == (401, "invalid_credentials")


async def test_a_key_revoked_elsewhere_stops_within_five_seconds(harness: HttpHarness) -> None:
    """ADMIN-9: a change by another node takes effect once the cached credential is stale."""
    assert (await harness.request("GET", "/locks/a")).status_code == 200
    (key,) = (await harness.server.store.registry.service_keys(harness.project_id, limit=10, cursor=None)).items
    await harness.server.store.registry.delete_service_key(harness.project_id, key.id)
    harness.clock.advance(CREDENTIAL_SECONDS_MAX * 1_000)
    assert CREDENTIAL_SECONDS_MAX <= 5
    assert problem(await harness.request("GET", "/locks/a")) == (401, "invalid_credentials")


async def test_a_lookup_that_began_before_a_change_is_not_cached(harness: HttpHarness) -> None:
    """ADMIN-9: the result of a lookup does not undo a change made meanwhile."""
    slow, authenticator = await slow_authenticator(harness)
    assert slow.gate is not None
    header = f"Bearer {UNKNOWN}".encode()
    together = [asyncio.create_task(authenticator.principal(header)) for _ in range(3)]
    while not slow.asked:
        await asyncio.sleep(0)
    authenticator.invalidate()
    slow.gate.set()
    await asyncio.gather(*together)
    assert slow.asked == 1  # concurrent requests shared one lookup
    assert authenticator.cached_principal(header) is None
    await authenticator.principal(header)
    assert slow.asked == 2
    assert authenticator.cached_principal(header) is not None


async def slow_authenticator(harness: HttpHarness) -> tuple["SlowRegistry", Authenticator]:
    """Authenticator over a registry that responds only while its gate is open."""
    registry = harness.server.store.registry
    (key,) = (await registry.service_keys(harness.project_id, limit=10, cursor=None)).items
    slow = SlowRegistry(key, await registry.project(harness.project_id))
    slow.gate = asyncio.Event()
    return slow, Authenticator(slow, harness.clock, ADMIN_TOKEN, harness.server.store.admin_tokens)


async def test_many_unknown_keys_neither_flood_the_store_nor_block_a_valid_key(
    harness: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: lookups of unknown secrets are limited. A key that was valid before is looked up regardless, and at
    once; also after a change of any key has emptied the cache.
    """
    monkeypatch.setattr(credential_cache, "LOOKUPS_MAX", 40)
    slow, authenticator = await slow_authenticator(harness)
    assert slow.gate is not None
    good = f"Bearer {UNKNOWN}".encode()
    slow.gate.set()
    await authenticator.principal(good)
    slow.gate.clear()
    harness.clock.advance(CREDENTIAL_SECONDS_MAX * 1_000)
    crowd = [asyncio.create_task(authenticator.principal(f"Bearer sk-{n:043}".encode())) for n in range(40)]
    async with asyncio.timeout(30):
        while slow.asked <= credential_cache.LOOKUPS_AT_ONCE or len(authenticator.service_keys.lookups) < 40:
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert slow.asked == 1 + credential_cache.LOOKUPS_AT_ONCE
    with pytest.raises(LockError, match="too many unknown credentials"):
        await authenticator.principal(b"Bearer sk-" + b"B" * 43)
    asking = asyncio.create_task(authenticator.principal(good))
    for _ in range(10):
        await asyncio.sleep(0)
    assert slow.asked == 2 + credential_cache.LOOKUPS_AT_ONCE
    authenticator.invalidate()
    again = asyncio.create_task(authenticator.principal(good))
    for _ in range(10):
        await asyncio.sleep(0)
    assert slow.asked == 3 + credential_cache.LOOKUPS_AT_ONCE
    slow.gate.set()
    assert [(await one).project_id for one in (asking, again)] == [harness.project_id] * 2
    await asyncio.gather(*crowd)


async def test_of_too_many_known_keys_the_one_that_was_looked_up_longest_ago_is_forgotten(
    harness: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: it is then looked up as an unknown one."""
    monkeypatch.setattr(credential_cache, "CREDENTIALS_MAX", 8)
    slow, authenticator = await slow_authenticator(harness)
    assert slow.gate is not None
    slow.gate.set()
    digests = [sha256(b"%d" % number).digest() for number in range(10)]
    for digest in [digests[0], *digests[:9], digests[0], digests[9]]:
        harness.clock.advance(CREDENTIAL_SECONDS_MAX * 1_000)
        await authenticator.service_keys.get(digest)
    monkeypatch.setattr(credential_cache, "LOOKUPS_MAX", 0)
    authenticator.invalidate()
    for digest in (digests[0], *digests[3:]):
        await authenticator.service_keys.get(digest)
    for digest in digests[1:3]:
        with pytest.raises(LockError, match="too many unknown credentials"):
            await authenticator.service_keys.get(digest)


@pytest.mark.real_time
async def test_a_lookup_in_a_hanging_store_times_out(harness: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-16: the lookup continues for later requests."""
    monkeypatch.setattr(credential_cache, "LOOKUP_SECONDS_MAX", 0.02)
    slow, authenticator = await slow_authenticator(harness)
    with pytest.raises(StoreUnavailableError) as caught:
        await authenticator.principal(f"Bearer {UNKNOWN}".encode())
    assert caught.value.cause_code == "lookup_late"
    assert slow.gate is not None
    monkeypatch.setattr(credential_cache, "LOOKUP_SECONDS_MAX", 30.0)
    slow.gate.set()
    assert (await authenticator.principal(f"Bearer {UNKNOWN}".encode())).project_id == harness.project_id
    assert slow.asked == 1


async def test_a_deletion_that_fails_half_way_takes_effect_at_once(
    harness: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADMIN-9: the store may have deleted a part or all of it."""

    def no_room(_project_id: str) -> None:
        raise StoreUnavailableError("disk_full", "the disk is full")

    assert (await harness.request("GET", "/locks/a")).status_code == 200
    monkeypatch.setattr(harness.server.store.locks, "delete_locks_of", no_room)
    response = await harness.admin("DELETE", f"/projects/{harness.project_id}")
    assert problem(response) == (503, "lock_service_unavailable")
    assert problem(await harness.request("GET", "/locks/a")) == (401, "invalid_credentials")


async def test_a_key_stops_at_its_expiry(harness: HttpHarness) -> None:
    """ADMIN-7: at that instant, although it is cached."""
    ends = datetime.fromtimestamp(harness.clock.now_ms() / 1_000 + 2, UTC).isoformat()
    key = (await harness.new_key(expires_at=ends))["key_value"]
    harness.clock.advance(1_999)
    assert (await harness.request("GET", "/locks/a", key=key)).status_code == 200
    harness.clock.advance(1)
    assert problem(await harness.request("GET", "/locks/a", key=key)) == (401, "invalid_credentials")


async def test_an_old_secret_stays_valid_for_keep_old_seconds(harness: HttpHarness) -> None:
    """ADMIN-8: both work during the overlap; without one, the old secret ends at once."""
    key = await harness.new_key()
    path = f"/projects/{harness.project_id}/service-keys/{key['id']}/regenerate"
    second = (await harness.admin("POST", path, json={"keep_old_seconds": 3})).json()
    for secret in (key["key_value"], second["key_value"]):
        assert (await harness.request("GET", "/locks/a", key=secret)).status_code == 200
    harness.clock.advance(3_000)
    assert problem(await harness.request("GET", "/locks/a", key=key["key_value"])) == (401, "invalid_credentials")
    third = (await harness.admin("POST", path)).json()
    assert problem(await harness.request("GET", "/locks/a", key=second["key_value"])) == (401, "invalid_credentials")
    assert (await harness.request("GET", "/locks/a", key=third["key_value"])).status_code == 200


async def test_unknown_and_revoked_keys_get_the_same_sentence(harness: HttpHarness) -> None:
    """HTTP-14."""
    key = await harness.new_key()
    await harness.admin("DELETE", f"/projects/{harness.project_id}/service-keys/{key['id']}")
    revoked = await harness.request("GET", "/locks/a", key=key["key_value"])
    unknown = await harness.request("GET", "/locks/a", key=UNKNOWN)
    assert revoked.json() == unknown.json()


async def test_a_deleted_project_has_no_keys_and_no_locks(harness: HttpHarness) -> None:
    """ADMIN-9."""
    await harness.acquire("a", new_token())
    await harness.admin("DELETE", f"/projects/{harness.project_id}")
    assert problem(await harness.request("GET", "/locks/a")) == (401, "invalid_credentials")
    assert await harness.server.store.locks.count_held() == 0
