"""Acquires that wait, over HTTP: valid waits, their outcomes, and clients that disconnect."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from testsupport.service_requests import perform

from volcano_locks_server.http import auth, credential_cache
from volcano_locks_server.http.server import connection_limits, http1
from volcano_locks_server.http.server.connection_context import ConnectionContext
from volcano_locks_server.ports.registry import Credential
from volcano_locks_server.queue import waiter_table
from volcano_locks_server.rules.lease import Read, Release, Released, State
from volcano_locks_server.rules.values import LockKey, parse_owner_token
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import ManualClock, RunningServer, running_server_async

from .conftest import HttpHarness, new_token, problem
from .memory_connection import MemoryConnection
from .raw_connection import RawConnection, lock_request

HELD = (409, "lock_held")


async def settled() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


def acquire_waiting(
    harness: HttpHarness, lock: str, token: str, wait: object = 20, ttl: int = 30, **more: Any
) -> "asyncio.Task[httpx2.Response]":
    headers = {"X-Volcano-Lock-Token": token}
    body = {"ttl_seconds": ttl, "wait_seconds": wait}
    return asyncio.create_task(harness.request("POST", f"/locks/{lock}/lease", headers=headers, json=body, **more))


async def test_a_wait_ends_with_a_lease_or_lock_held(harness: HttpHarness, clock: ManualClock) -> None:
    """WAIT-1, QUOTA-3: one request of the quota, shown as it was when the request arrived."""
    await harness.set_quota(100)
    holder, waiter = new_token(), new_token()
    await harness.acquire("a", holder)
    first, second = acquire_waiting(harness, "a", waiter, 1.5), acquire_waiting(harness, "a", new_token(), 20.0)
    await settled()
    clock.advance(1_500)
    response = await asyncio.wait_for(first, 5)
    assert problem(response) == HELD
    assert response.headers["x-ratelimit-remaining"] == "98"
    await harness.release("a", holder)
    granted = await asyncio.wait_for(second, 5)
    assert granted.status_code == 201
    assert set(granted.json()) == {"expires_at", "fencing_token"}
    assert granted.headers["x-ratelimit-remaining"] == "97"
    assert granted.json()["expires_at"] == "2026-07-20T14:00:31.500Z"  # WAIT-3: from the grant


async def test_the_end_of_a_wait_names_the_lease(harness: HttpHarness, clock: ManualClock) -> None:
    """HTTP-28, WAIT-6: the lease as it is at that end, also for a request whose position a repeat took over."""
    holder, waiter = new_token(), new_token()
    label = {"X-Volcano-Lock-Holder": "ann/1"}
    lease = (await harness.acquire("a", holder, 30, headers=label)).json()
    first = acquire_waiting(harness, "a", waiter, 20)
    await settled()
    second = acquire_waiting(harness, "a", waiter, 2)
    replaced = (await asyncio.wait_for(first, 5)).json()
    assert (replaced["code"], replaced["holder"]) == ("lock_held", "ann/1")
    assert {word: replaced[word] for word in lease} == lease
    renewed = (await harness.renew("a", holder, 60)).json()
    clock.advance(2_000)
    ended = (await asyncio.wait_for(second, 5)).json()
    assert (ended["code"], ended["holder"]) == ("lock_held", "ann/1")
    assert {word: ended[word] for word in renewed} == renewed


@pytest.mark.parametrize("wait", [0, 0.0, 60, 1e-3, 25])
async def test_valid_waits(harness: HttpHarness, wait: object) -> None:
    """WAIT-1."""
    assert (await acquire_waiting(harness, "a", new_token(), wait)).status_code == 201


@pytest.mark.parametrize(
    "wait", ["-1", "60.001", "61", "true", '"5"', "null", "[]", "1e400", "99999999999999999999999"]
)
async def test_invalid_waits(harness: HttpHarness, wait: str) -> None:
    """WAIT-1: the sentence names the field."""
    headers = {"X-Volcano-Lock-Token": new_token()}
    body = f'{{"ttl_seconds": 30, "wait_seconds": {wait}}}'
    response = await harness.request("POST", "/locks/a/lease", headers=headers, content=body)
    assert problem(response) == (400, "invalid_wait")
    assert "wait_seconds" in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"ttl_seconds": 30, "wait_seconds": 1, "wait_seconds": 2}', "invalid_request"),
        ('{"ttl_seconds": 30, "ttl_seconds": 31}', "invalid_request"),
        ('{"ttl_seconds": 30, "ttl_seconds": 31, "wait_seconds": 2}', "invalid_request"),
        ('{"wait_seconds": 2}', "invalid_ttl"),
        ('{"ttl_seconds": 30, "wait": 2}', "invalid_request"),
    ],
)
async def test_a_body_has_each_field_once_and_no_others(harness: HttpHarness, body: str, code: str) -> None:
    """HTTP-12, WAIT-1."""
    headers = {"X-Volcano-Lock-Token": new_token()}
    assert problem(await harness.request("POST", "/locks/a/lease", headers=headers, content=body)) == (400, code)


async def test_a_renewal_takes_no_wait(harness: HttpHarness) -> None:
    """HTTP-12."""
    headers = {"X-Volcano-Lock-Token": new_token()}
    body = {"ttl_seconds": 30, "wait_seconds": 1}
    assert problem(await harness.request("PATCH", "/locks/a/lease", headers=headers, json=body)) == (
        400,
        "invalid_request",
    )


async def test_too_many_waiters_get_429(harness: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-7."""
    monkeypatch.setattr(waiter_table, "WAITERS_PER_LOCK_MAX", 1)
    await harness.acquire("a", new_token())
    waiting = acquire_waiting(harness, "a", new_token())
    await settled()
    response = await acquire_waiting(harness, "a", new_token())
    assert problem(response) == (429, "too_many_waiters")
    assert response.headers["retry-after"] == "1"
    waiting.cancel()


async def test_a_key_that_is_revoked_during_the_wait_gets_no_lease(harness: HttpHarness) -> None:
    """ADMIN-9, WAIT-5: and the lock is free for others."""
    second = await harness.new_key()
    holder = new_token()
    await harness.acquire("a", holder)
    waiting = acquire_waiting(harness, "a", new_token(), key=second["key_value"])
    await settled()
    await harness.admin("DELETE", f"/projects/{harness.project_id}/service-keys/{second['id']}")
    await harness.release("a", holder)
    assert problem(await asyncio.wait_for(waiting, 5)) == (401, "invalid_credentials")
    await settled()
    assert (await harness.read("a"))["held"] is False


def slow_lookups(server: Server, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """From now on, lookups of credentials wait until the returned event is set."""
    found = asyncio.Event()
    credential = server.store.registry.credential

    async def credential_later(digest: bytes) -> Credential | None:
        await found.wait()
        return await credential(digest)

    monkeypatch.setattr(server.store.registry, "credential", credential_later)
    return found


async def test_a_lease_that_expires_during_the_key_lookup_is_not_granted(
    harness: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAIT-3: the age of the grant is checked last, right before the response."""
    second = await harness.new_key()
    holder = new_token()
    await harness.acquire("a", holder)
    waiting = acquire_waiting(harness, "a", new_token(), ttl=5, key=second["key_value"])
    await settled()
    harness.clock.advance(credential_cache.CREDENTIAL_SECONDS_MAX * 1_000)
    await harness.release("a", new_token())  # puts its key in the cache again
    found = slow_lookups(harness.server, monkeypatch)
    await harness.release("a", holder)
    await settled()
    harness.clock.advance(4_000)
    found.set()
    assert problem(await asyncio.wait_for(waiting, 5)) == (503, "lock_service_unavailable")
    await settled()
    assert (await harness.read("a"))["held"] is False


async def test_a_cancelled_application_leaves_the_queue(harness: HttpHarness) -> None:
    """WAIT-5: some servers cancel the application when the client disconnects."""
    holder, waiter = new_token(), new_token()
    await harness.acquire("a", holder)
    gone, stays = acquire_waiting(harness, "a", new_token()), acquire_waiting(harness, "a", waiter)
    await settled()
    gone.cancel()
    await settled()
    await harness.release("a", holder)
    assert (await asyncio.wait_for(stays, 5)).status_code == 201


async def test_waits_are_counted_by_outcome(harness: HttpHarness, clock: ManualClock) -> None:
    """WAIT-11: and the current waiters are counted."""
    holder = new_token()
    await harness.acquire("a", holder)
    tasks = [acquire_waiting(harness, "a", new_token(), wait) for wait in (1, 20, 20)]
    await settled()
    assert "\nvolcano_locks_waiters 3.0\n" in await exposition(harness)
    clock.advance(1_000)
    tasks[1].cancel()
    await settled()
    await harness.release("a", holder)
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    text = await exposition(harness)
    assert "\nvolcano_locks_waiters 0.0\n" in text
    for outcome in ("lock_held", "acquired"):
        assert f'volcano_locks_waits_total{{outcome="{outcome}"}} 1.0' in text
    assert "volcano_locks_wait_seconds_count 1.0" in text


async def exposition(harness: HttpHarness) -> str:
    return (await harness.request("GET", "/metrics", key=None)).text


# --- over a socket ----------------------------------------------------------------------------------------


@pytest.fixture
async def running(clock: ManualClock) -> AsyncIterator[RunningServer]:
    async with running_server_async(clock=clock) as one:
        yield one


class Client:
    """A connection whose requests carry the service key."""

    def __init__(self, running: RunningServer, connection: RawConnection) -> None:
        self._running, self._connection = running, connection
        self.status, self.close = connection.status, connection.close

    def send(self, method: str, path: str, token: str = "", body: str = "") -> None:
        self._connection.send(lock_request(self._running, method, path, token, body))

    def acquire_waiting(self, lock: str, token: str, seconds: float = 20) -> None:
        self.send("POST", f"/locks/{lock}/lease", token, f'{{"ttl_seconds":30,"wait_seconds":{seconds}}}')


async def connected(running: RunningServer) -> Client:
    return Client(running, await RawConnection.open(running))


async def until_waiting(running: RunningServer, count: int) -> None:
    async with asyncio.timeout(5):
        while running.server.service.queues.table.request_count != count:
            await asyncio.sleep(0.001)


@pytest.mark.real_time
@pytest.mark.parametrize("behind", [0, 3])
async def test_a_client_that_disconnects_has_left_the_queue(running: RunningServer, behind: int) -> None:
    """WAIT-5: also a client that has pipelined more requests."""
    holder, waiter = new_token(), new_token()
    one, gone, stays = await connected(running), await connected(running), await connected(running)
    one.acquire_waiting("a", holder)
    assert await one.status() == 201
    gone.acquire_waiting("a", new_token())
    for _ in range(behind):
        gone.send("GET", "/locks/b")
    await until_waiting(running, 1)
    stays.acquire_waiting("a", waiter)
    await until_waiting(running, 2)
    await gone.close()
    await until_waiting(running, 1)
    one.send("DELETE", "/locks/a/lease", holder)
    assert await one.status() == 204
    assert await stays.status() == 201
    for each in (one, stays):
        await each.close()


@pytest.mark.real_time
async def test_a_client_that_disconnects_during_the_key_lookup_gets_no_lease(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAIT-5: the lock is free again at once, even if the lookup takes long."""
    one, gone = await connected(running), await connected(running)
    holder = new_token()
    one.acquire_waiting("a", holder)
    assert await one.status() == 201
    gone.acquire_waiting("a", new_token())
    await until_waiting(running, 1)
    slow_lookups(running.server, monkeypatch)
    for module in (auth, credential_cache):
        monkeypatch.setattr(module, "CREDENTIAL_SECONDS_MAX", 0)
    command = Release(parse_owner_token(holder.encode()))
    release = perform(running.server.service, running.project_id, 0, LockKey("a"), command)
    assert isinstance((await release).outcome, Released)
    assert await held(running)
    await gone.close()
    async with asyncio.timeout(5):
        while await held(running):
            await asyncio.sleep(0.001)
    await one.close()


async def held(running: RunningServer) -> bool:
    """Whether the lock "a" is held, read from the service."""
    state = (await perform(running.server.service, running.project_id, 0, LockKey("a"), Read())).outcome
    assert isinstance(state, State)
    return state.lease is not None


@pytest.mark.real_time
async def test_requests_behind_one_that_waits_are_answered_after_it(running: RunningServer) -> None:
    """WAIT-1: in their order, on the same connection."""
    holder = new_token()
    one, other = await connected(running), await connected(running)
    one.acquire_waiting("a", holder)
    assert await one.status() == 201
    other.acquire_waiting("a", new_token())
    for _ in range(40):
        other.send("GET", "/locks/b")
    await until_waiting(running, 1)
    one.send("DELETE", "/locks/a/lease", holder)
    assert await one.status() == 204
    assert [await other.status() for _ in range(41)] == [201] + [200] * 40
    for each in (one, other):
        await each.close()


@pytest.mark.real_time
async def test_a_connection_that_waits_is_not_idle(running: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-1, HTTP-24, HTTP-25: no time limit closes it, and no new connection displaces it."""
    monkeypatch.setattr(http1, "SECONDS_MAX", dict.fromkeys(http1.SECONDS_MAX, 0.01))
    monkeypatch.setattr(http1, "WRITE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(connection_limits, "SWEEP_SECONDS", 0.01)
    service = running.server.service
    holder = await connected(running)
    token = new_token()
    holder.acquire_waiting("a", token)
    assert await holder.status() == 201
    waiting = await connected(running)
    waiting.acquire_waiting("a", new_token())
    await until_waiting(running, 1)
    await asyncio.sleep(1.5)  # outlasts a sweep that began with the old limits
    assert service.queues.table.request_count == 1
    async with httpx2.AsyncClient(base_url=running.url) as client:
        headers = {"Authorization": f"Bearer {running.service_key}", "X-Volcano-Lock-Token": token}
        assert (await client.delete("/locks/a/lease", headers=headers)).status_code == 204
    assert await waiting.status() == 201
    await waiting.close()
    await holder.close()


@pytest.mark.real_time
async def test_a_stopping_server_answers_its_waiters_at_once(clock: ManualClock) -> None:
    """WAIT-8, HTTP-23: with 503, long before the wait would time out."""
    server = Server(Settings(store="memory://", port=0, log_level="error"), clock=clock)
    await server.start()
    issued = await server.issue_service_key("test", "test")
    running = RunningServer(server, server.url, issued.project_id, issued.secret, server.admin_token)
    one, waiting = await connected(running), await connected(running)
    one.acquire_waiting("a", new_token())
    assert await one.status() == 201
    waiting.acquire_waiting("a", new_token(), 60)
    await until_waiting(running, 1)
    closing = asyncio.create_task(server.close())
    assert await waiting.status() == 503
    await asyncio.wait_for(closing, 5)
    for each in (one, waiting):
        await each.close()


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("over_socket", [True])
async def test_a_disconnect_just_before_the_response_revokes_the_grant(harness: HttpHarness, turns: int) -> None:
    """WAIT-5: also if the connection is closing and its request has not been notified yet."""
    server = harness.server
    context = ConnectionContext(server.app, server.app.lease_requests, server.listener.limits)
    holder, connection = new_token(), MemoryConnection(context)
    await harness.acquire("a", holder)
    fields = f"Authorization: Bearer {harness.service_key}\r\nX-Volcano-Lock-Token: {new_token()}\r\n"
    body = '{"ttl_seconds":30,"wait_seconds":20}'
    head = f"POST /locks/a/lease HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    connection.feed((head + body).encode())
    await settled()
    assert server.app.is_idle_but_for(1)
    release = Release(parse_owner_token(holder.encode()))
    released = asyncio.ensure_future(perform(server.service, harness.project_id, 0, LockKey("a"), release))
    for _ in range(turns):
        await asyncio.sleep(0)
    is_delivered = bool(connection.transport.written)
    connection.transport.close()
    asyncio.get_running_loop().call_soon(connection.protocol.connection_lost, None)
    await released
    await settled()
    assert (await harness.read("a"))["held"] == is_delivered
    assert server.app.is_idle_but_for(0)
