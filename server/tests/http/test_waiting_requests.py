"""Waiting over HTTP: what may be asked, what is answered, and that a client that hangs up was never granted."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from testsupport.service_requests import perform

from volcano_locks_server.http import auth
from volcano_locks_server.http.server import connection_limits, http1
from volcano_locks_server.ports.registry import Credential
from volcano_locks_server.queue import waiter_table
from volcano_locks_server.rules.lease import Read, Release, Released, State
from volcano_locks_server.rules.values import LockKey, OwnerToken
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import ManualClock, RunningServer, running_server_async

from .conftest import House, new_token, problem

HELD = (409, "lock_held")


async def settled() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


def begun(
    house: House, lock: str, token: str, wait: object = 20, ttl: int = 30, **more: Any
) -> "asyncio.Task[httpx2.Response]":
    headers = {"X-Volcano-Lock-Token": token}
    body = {"ttl_seconds": ttl, "wait_seconds": wait}
    return asyncio.create_task(house.ask("POST", f"/locks/{lock}/lease", headers=headers, json=body, **more))


async def test_a_wait_ends_in_a_lease_or_in_lock_held(house: House, clock: ManualClock) -> None:
    """WAIT-1, QUOTA-3: one request of the quota, told as it stood when it came."""
    await house.set_quota(100)
    holder, waiter = new_token(), new_token()
    await house.acquire("a", holder)
    first, second = begun(house, "a", waiter, 1.5), begun(house, "a", new_token(), 20.0)
    await settled()
    clock.advance(1_500)
    answer = await asyncio.wait_for(first, 5)
    assert problem(answer) == HELD
    assert answer.headers["x-ratelimit-remaining"] == "98"
    await house.release("a", holder)
    granted = await asyncio.wait_for(second, 5)
    assert granted.status_code == 201
    assert set(granted.json()) == {"expires_at", "fencing_token"}
    assert granted.headers["x-ratelimit-remaining"] == "97"
    assert granted.json()["expires_at"] == "2026-07-20T14:00:31.500Z"  # WAIT-3: from the grant


@pytest.mark.parametrize("wait", [0, 0.0, 60, 1e-3, 25])
async def test_waits_that_are_taken(house: House, wait: object) -> None:
    """WAIT-1."""
    assert (await begun(house, "a", new_token(), wait)).status_code == 201


@pytest.mark.parametrize(
    "wait", ["-1", "60.001", "61", "true", '"5"', "null", "[]", "1e400", "99999999999999999999999"]
)
async def test_waits_that_are_none(house: House, wait: str) -> None:
    """WAIT-1: the sentence names the field, the limit and what came."""
    headers = {"X-Volcano-Lock-Token": new_token()}
    body = f'{{"ttl_seconds": 30, "wait_seconds": {wait}}}'
    answer = await house.ask("POST", "/locks/a/lease", headers=headers, content=body)
    assert problem(answer) == (400, "invalid_wait")
    assert "wait_seconds" in answer.json()["error"]


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
async def test_a_body_says_each_thing_once_and_nothing_else(house: House, body: str, code: str) -> None:
    """HTTP-12, WAIT-1."""
    headers = {"X-Volcano-Lock-Token": new_token()}
    assert problem(await house.ask("POST", "/locks/a/lease", headers=headers, content=body)) == (400, code)


async def test_a_renewal_does_not_wait(house: House) -> None:
    """HTTP-12."""
    headers = {"X-Volcano-Lock-Token": new_token()}
    body = {"ttl_seconds": 30, "wait_seconds": 1}
    assert problem(await house.ask("PATCH", "/locks/a/lease", headers=headers, json=body)) == (400, "invalid_request")


async def test_too_many_waiters_are_told_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-7."""
    monkeypatch.setattr(waiter_table, "WAITERS_PER_LOCK_MAX", 1)
    await house.acquire("a", new_token())
    waiting = begun(house, "a", new_token())
    await settled()
    answer = await begun(house, "a", new_token())
    assert problem(answer) == (429, "too_many_waiters")
    assert answer.headers["retry-after"] == "1"
    waiting.cancel()


async def test_a_key_that_was_revoked_during_the_wait_gets_no_lease(house: House) -> None:
    """ADMIN-9, WAIT-5: nor does it keep the lock from others."""
    second = await house.new_key()
    holder = new_token()
    await house.acquire("a", holder)
    waiting = begun(house, "a", new_token(), key=second["key_value"])
    await settled()
    await house.admin("DELETE", f"/projects/{house.project_id}/service-keys/{second['id']}")
    await house.release("a", holder)
    assert problem(await asyncio.wait_for(waiting, 5)) == (401, "invalid_credentials")
    await settled()
    assert (await house.read("a"))["held"] is False


def slow_lookups(server: Server, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """From now on credentials are looked up only once this is set."""
    found = asyncio.Event()
    credential = server.store.registry.credential

    async def credential_later(digest: bytes) -> Credential | None:
        await found.wait()
        return await credential(digest)

    monkeypatch.setattr(server.store.registry, "credential", credential_later)
    return found


async def test_a_lease_that_ran_out_while_its_key_was_looked_up_is_not_told(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAIT-3: nothing comes between the look at the lease and the answer."""
    second = await house.new_key()
    holder = new_token()
    await house.acquire("a", holder)
    waiting = begun(house, "a", new_token(), ttl=5, key=second["key_value"])
    await settled()
    house.clock.advance(auth.CREDENTIAL_SECONDS_MAX * 1_000)
    await house.release("a", new_token())  # whose key is known from now on again
    found = slow_lookups(house.server, monkeypatch)
    await house.release("a", holder)
    await settled()
    house.clock.advance(4_000)
    found.set()
    assert problem(await asyncio.wait_for(waiting, 5)) == (503, "lock_service_unavailable")
    await settled()
    assert (await house.read("a"))["held"] is False


async def test_a_cancelled_application_leaves_the_line(house: House) -> None:
    """WAIT-5: some servers cancel the application when the client is gone."""
    holder, waiter = new_token(), new_token()
    await house.acquire("a", holder)
    gone, stays = begun(house, "a", new_token()), begun(house, "a", waiter)
    await settled()
    gone.cancel()
    await settled()
    await house.release("a", holder)
    assert (await asyncio.wait_for(stays, 5)).status_code == 201


async def test_what_is_counted_of_waits(house: House, clock: ManualClock) -> None:
    """WAIT-11: by what came of them, and how many there are now."""
    holder = new_token()
    await house.acquire("a", holder)
    tasks = [begun(house, "a", new_token(), wait) for wait in (1, 20, 20)]
    await settled()
    assert "\nvolcano_locks_waiters 3.0\n" in await exposition(house)
    clock.advance(1_000)
    tasks[1].cancel()
    await settled()
    await house.release("a", holder)
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    text = await exposition(house)
    assert "\nvolcano_locks_waiters 0.0\n" in text
    for outcome in ("lock_held", "acquired"):
        assert f'volcano_locks_waits_total{{outcome="{outcome}"}} 1.0' in text
    assert "volcano_locks_wait_seconds_count 1.0" in text


async def exposition(house: House) -> str:
    return (await house.ask("GET", "/metrics", key=None)).text


# --- over a socket ----------------------------------------------------------------------------------------


class Wire:
    """One connection to a running server, byte by byte."""

    def __init__(self, running: RunningServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.running, self.reader, self.writer = running, reader, writer

    def send(self, method: str, path: str, token: str = "", body: str = "") -> None:
        lines_ = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.running.service_key}"]
        lines_ += [f"X-Volcano-Lock-Token: {token}"] if token else []
        lines_ += [f"Content-Length: {len(body)}", "", body]
        self.writer.write("\r\n".join(lines_).encode())

    def wait(self, lock: str, token: str, seconds: float = 20) -> None:
        self.send("POST", f"/locks/{lock}/lease", token, f'{{"ttl_seconds":30,"wait_seconds":{seconds}}}')

    async def status(self) -> int:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)).decode().lower()
        length = head.partition("content-length: ")[2].partition("\r\n")[0]
        await self.reader.readexactly(int(length or 0))
        return int(head.split()[1])

    async def hang_up(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
async def running(clock: ManualClock) -> AsyncIterator[RunningServer]:
    async with running_server_async(clock=clock) as one:
        yield one


async def wire(running: RunningServer) -> Wire:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
    return Wire(running, reader, writer)


async def until_waiting(running: RunningServer, count: int) -> None:
    async with asyncio.timeout(5):
        while running.server.service.queues.request_count != count:
            await asyncio.sleep(0.001)


@pytest.mark.real_time
@pytest.mark.parametrize("behind", [0, 3])
async def test_a_client_that_hangs_up_has_left_the_line(running: RunningServer, behind: int) -> None:
    """WAIT-5: also one that sent more requests behind the one that waits."""
    holder, waiter = new_token(), new_token()
    one, gone, stays = await wire(running), await wire(running), await wire(running)
    one.wait("a", holder)
    assert await one.status() == 201
    gone.wait("a", new_token())
    for _ in range(behind):
        gone.send("GET", "/locks/b")
    await until_waiting(running, 1)
    stays.wait("a", waiter)
    await until_waiting(running, 2)
    await gone.hang_up()
    await until_waiting(running, 1)
    one.send("DELETE", "/locks/a/lease", holder)
    assert await one.status() == 204
    assert await stays.status() == 201
    for each in (one, stays):
        await each.hang_up()


@pytest.mark.real_time
async def test_who_hangs_up_while_the_key_is_looked_up_keeps_nothing(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAIT-5: the lock is free again at once, however long the lookup takes."""
    one, gone = await wire(running), await wire(running)
    holder = new_token()
    one.wait("a", holder)
    assert await one.status() == 201
    gone.wait("a", new_token())
    await until_waiting(running, 1)
    slow_lookups(running.server, monkeypatch)
    monkeypatch.setattr(auth, "CREDENTIAL_SECONDS_MAX", 0)
    command = Release(OwnerToken.parse(holder).digest)
    release = perform(running.server.service, running.project_id, 0, LockKey("a"), command)
    assert isinstance((await release).outcome, Released)
    assert await held(running)
    await gone.hang_up()
    async with asyncio.timeout(5):
        while await held(running):
            await asyncio.sleep(0.001)
    await one.hang_up()


async def held(running: RunningServer) -> bool:
    """Whether the lock "a" is held, asked of the service itself."""
    state = (await perform(running.server.service, running.project_id, 0, LockKey("a"), Read())).outcome
    assert isinstance(state, State)
    return state.lease is not None


@pytest.mark.real_time
async def test_requests_behind_one_that_waits_are_answered_after_it(running: RunningServer) -> None:
    """WAIT-1: in their order, on the same connection."""
    holder = new_token()
    one, other = await wire(running), await wire(running)
    one.wait("a", holder)
    assert await one.status() == 201
    other.wait("a", new_token())
    for _ in range(40):
        other.send("GET", "/locks/b")
    await until_waiting(running, 1)
    one.send("DELETE", "/locks/a/lease", holder)
    assert await one.status() == 204
    assert [await other.status() for _ in range(41)] == [201] + [200] * 40
    for each in (one, other):
        await each.hang_up()


@pytest.mark.real_time
async def test_a_connection_that_waits_is_not_idle(running: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-1, HTTP-24, HTTP-25: no limit on what a client does not do ends it, nor does it make room for others."""
    for limit in ("HEAD_SECONDS_MAX", "BODY_SECONDS_MAX", "WRITE_SECONDS_MAX", "KEEP_ALIVE_SECONDS"):
        monkeypatch.setattr(http1, limit, 0.01)
    monkeypatch.setattr(connection_limits, "SWEEP_SECONDS", 0.01)
    service = running.server.service
    holder = await wire(running)
    token = new_token()
    holder.wait("a", token)
    assert await holder.status() == 201
    waiting = await wire(running)
    waiting.wait("a", new_token())
    await until_waiting(running, 1)
    await asyncio.sleep(1.5)  # the sweep that was on its way came with the old limits
    assert service.queues.request_count == 1
    async with httpx2.AsyncClient(base_url=running.url) as client:
        headers = {"Authorization": f"Bearer {running.service_key}", "X-Volcano-Lock-Token": token}
        assert (await client.delete("/locks/a/lease", headers=headers)).status_code == 204
    assert await waiting.status() == 201
    await waiting.hang_up()
    await holder.hang_up()


@pytest.mark.real_time
async def test_a_stopping_server_answers_its_waiters_at_once(clock: ManualClock) -> None:
    """WAIT-8, HTTP-23: with 503 and when to come back, long before the wait would end."""
    server = Server(Settings(store="memory://", port=0, log_level="error"), clock=clock)
    await server.start()
    issued = await server.issue_service_key("test", "test")
    running = RunningServer(server, server.url, issued.project_id, issued.secret, server.admin_token)
    one, waiting = await wire(running), await wire(running)
    one.wait("a", new_token())
    assert await one.status() == 201
    waiting.wait("a", new_token(), 60)
    await until_waiting(running, 1)
    closing = asyncio.create_task(server.close())
    assert await waiting.status() == 503
    await asyncio.wait_for(closing, 5)
    for each in (one, waiting):
        await each.hang_up()
