"""The public API's official Python client, unmodified, against this server.

The client is third-party code: its requests, expectations and errors are the compatibility that spec/http.md promises.
"""

import time
import uuid
from collections.abc import Iterator

import httpx
import pytest
from testsupport.engines.processes import BUSY_SECONDS
from volcano_sdk import VolcanoClient
from volcano_sdk.errors import (
    AuthenticationError,
    ConflictError,
    PermissionDeniedError,
    RateLimitedError,
    ValidationError,
)

from volcano_locks_server.testing import ManualClock, RunningServer, running_server

KEY = "daily-rollup"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def running(clock: ManualClock) -> Iterator[RunningServer]:
    with running_server(clock=clock) as one:
        yield one


def client_of(running: RunningServer, service_key: str | None = None) -> VolcanoClient:
    return VolcanoClient(
        api_url=running.url, anon_key="ak-not-used-for-locks", service_key=service_key or running.service_key
    )


@pytest.fixture
def client(running: RunningServer) -> VolcanoClient:
    return client_of(running)


def admin(running: RunningServer, method: str, path: str, body: object = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {running.admin_token}"}
    return httpx.request(method, running.url + path, headers=headers, json=body)


def test_it_acquires_renews_reads_and_releases(client: VolcanoClient, clock: ManualClock) -> None:
    """HTTP-1, HTTP-3, LEASE-2, LEASE-8, LEASE-9, LEASE-12."""
    lease = client.locks.acquire(KEY, ttl=30)
    assert lease.expires_at.timestamp() * 1_000 == clock.now_ms() + 30_000
    clock.advance(10_000)
    renewed = client.locks.renew(KEY, lease, ttl=60)
    assert renewed.fencing_token == lease.fencing_token
    assert renewed.expires_at.timestamp() * 1_000 == clock.now_ms() + 60_000
    state = client.locks.get(KEY)
    assert (state.held, state.expires_at, state.fencing_token) == (True, renewed.expires_at, lease.fencing_token)
    client.locks.release(KEY, renewed)
    free = client.locks.get(KEY)
    assert (free.held, free.expires_at, free.fencing_token) == (False, None, None)


def test_a_repeated_acquire_recovers_its_lease(client: VolcanoClient) -> None:
    """LEASE-4, case 13."""
    token = str(uuid.uuid4())
    assert client.locks.acquire(KEY, ttl=30, token=token) == client.locks.acquire(KEY, ttl=30, token=token)


def test_an_acquire_after_a_force_release_gets_a_higher_token(client: VolcanoClient) -> None:
    """LEASE-3, LEASE-10."""
    first = client.locks.acquire(KEY, ttl=30)
    client.locks.force_release(KEY)
    second = client.locks.acquire(KEY, ttl=30)
    assert second.fencing_token > first.fencing_token
    with pytest.raises(ConflictError) as caught:
        client.locks.renew(KEY, first, ttl=30)
    assert (caught.value.status, caught.value.code) == (409, "lock_ownership_lost")


def test_keys_with_colons_arrive_unchanged(client: VolcanoClient, running: RunningServer) -> None:
    """HTTP-7: the client sends `a%3Ab`."""
    client.locks.acquire("jobs:nightly", ttl=30)
    headers = {"Authorization": f"Bearer {running.service_key}"}
    assert httpx.get(f"{running.url}/locks/jobs:nightly", headers=headers).json()["held"] is True


def test_contention_is_its_conflict_error(client: VolcanoClient) -> None:
    """LEASE-6."""
    client.locks.acquire(KEY, ttl=30)
    with pytest.raises(ConflictError) as caught:
        client.locks.acquire(KEY, ttl=30)
    assert (caught.value.status, caught.value.code) == (409, "lock_held")


def test_an_unknown_key_is_its_authentication_error(running: RunningServer) -> None:
    """HTTP-14."""
    with pytest.raises(AuthenticationError) as caught:
        client_of(running, "sk-" + "x" * 43).locks.acquire(KEY, ttl=30)
    assert (caught.value.status, caught.value.code) == (401, "invalid_credentials")


def test_a_credential_of_another_kind_is_its_permission_error(running: RunningServer) -> None:
    """HTTP-15."""
    with pytest.raises(PermissionDeniedError) as caught:
        client_of(running, "ak-anon").locks.get(KEY)
    assert (caught.value.status, caught.value.code) == (403, "service_key_required")


def test_a_bad_key_is_its_validation_error(client: VolcanoClient) -> None:
    """HTTP-7."""
    with pytest.raises(ValidationError) as caught:
        client.locks.acquire("not a key", ttl=30)
    assert (caught.value.status, caught.value.code) == (400, "invalid_lock_key")


def test_a_spent_quota_is_its_rate_limited_error(client: VolcanoClient, running: RunningServer) -> None:
    """QUOTA-4."""
    changed = admin(running, "PATCH", f"/projects/{running.project_id}", {"requests_per_minute": 2})
    assert changed.status_code == 200
    client.locks.get(KEY)
    client.locks.get(KEY)
    with pytest.raises(RateLimitedError) as caught:
        client.locks.get(KEY)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "lock_rate_limited", 60)


@pytest.mark.real_time
def test_its_guard_renews_a_lock_past_its_ttl(clock: ManualClock) -> None:
    """LEASE-8: its own renewals at its own pace, in real time."""
    with running_server() as running:
        client = client_of(running)
        with client.locks.with_lock(KEY, ttl=5) as guard:
            first = guard.lease
            assert not guard.wait_lost(timeout=7)
            assert guard.lease.fencing_token == first.fencing_token
            assert guard.lease.expires_at > first.expires_at
            with pytest.raises(ConflictError):
                client.locks.acquire(KEY, ttl=5)
        assert client.locks.get(KEY).held is False


@pytest.mark.real_time
def test_its_guard_sees_a_loss(client: VolcanoClient) -> None:
    """LEASE-10: at the next renewal."""
    began = time.monotonic()

    def body() -> None:
        with client.locks.with_lock(KEY, ttl=5) as guard:
            client.locks.force_release(KEY)
            assert guard.wait_lost(timeout=60)

    with pytest.raises(ConflictError) as caught:
        body()
    assert caught.value.code == "lock_ownership_lost"
    assert time.monotonic() - began < 5 + BUSY_SECONDS
