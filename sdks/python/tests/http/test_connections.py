"""The asyncio pool, and both clients, over real connections that close, trickle or send anything but HTTP."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest

from volcano_locks import AsyncClient, Client, ServerError, TransportError
from volcano_locks.asyncio.pool import IDLE_CHECK_SECONDS
from volcano_locks.http.response_reader import RESPONSE_BYTES_MAX
from volcano_locks.testing import ManualClock

from ..client_targets import AsyncTarget, SyncTarget, Target
from ..helpers import in_a_fork
from ..socket_server import GRANTED, ServerConnection, header, socket_server


@contextlib.asynccontextmanager
async def target_at(url: str, kind: str, clock: ManualClock):  # type: ignore[no-untyped-def]
    target: Target = (
        SyncTarget(Client(url, "sk-x", clock=clock))
        if kind == "sync"
        else AsyncTarget(AsyncClient(url, "sk-x", clock=clock))
    )
    try:
        yield target
    finally:
        await target.close()


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
async def test_a_reset_connection_costs_one_retry_with_the_same_ids(kind: str, clock: ManualClock) -> None:
    """case 32, SDK-1, SDK-2: the idle connection is reset as the second acquire is sent on it."""
    heads: list[str] = []

    def serve(connection: ServerConnection, number: int) -> None:
        if number == 0:
            connection.request()
            connection.respond(GRANTED)
            heads.append(connection.request())
            connection.reset()
        else:
            heads.append(connection.request())
            connection.respond(GRANTED)

    with socket_server(serve) as url:
        async with target_at(url, kind, clock) as target:
            await target.acquire("a", ttl=30)
            await target.acquire("b", ttl=30)
    assert len(heads) == 2
    for name in ("X-Volcano-Lock-Token", "X-Volcano-Request-Id"):
        assert header(heads[0], name) == header(heads[1], name)


@both
async def test_requests_share_a_connection_only_one_after_the_other(kind: str, clock: ManualClock) -> None:
    """A request has its connection to itself until its response."""
    together = threading.Barrier(2)
    received: list[tuple[int, str]] = []

    def serve(connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            received.append((number, head.split()[1]))
            if "/locks/side" in head:
                together.wait(20)
            connection.respond(GRANTED)

    with socket_server(serve) as url:
        async with target_at(url, kind, clock) as target:
            for key in ("a", "b"):
                await target.acquire(key, ttl=30)
            await asyncio.gather(target.acquire("side-a", ttl=30), target.acquire("side-b", ttl=30))
    assert received[:2] == [(0, "/locks/a/lease"), (0, "/locks/b/lease")]
    assert {number for number, _ in received[2:]} == {0, 1}


@pytest.mark.usefixtures("dropped_sockets")
@pytest.mark.real_time
def test_an_idle_connection_that_was_closed_is_not_reused() -> None:
    """case 32: a force release is never sent twice, so a closed connection must be noticed before it is used."""
    closed = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(b"HTTP/1.1 204 No Content\r\n\r\n")
        connection.sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    with socket_server(serve) as url, contextlib.closing(asyncio.new_event_loop()) as loop:
        client = AsyncClient(url, "sk-x")
        for key in ("a", "b"):
            loop.run_until_complete(client.locks.force_release(key))
            assert closed.wait(20)
            closed.clear()
            time.sleep(2 * IDLE_CHECK_SECONDS)
        loop.run_until_complete(client.close())


@both
async def test_the_path_of_the_api_url_is_kept(kind: str, clock: ManualClock) -> None:
    heads: list[str] = []

    def serve(connection: ServerConnection, number: int) -> None:
        heads.append(connection.request())
        connection.respond(GRANTED)

    with socket_server(serve) as url:
        async with target_at(f"{url}/tools/locks/", kind, clock) as target:
            await target.acquire("a:b", ttl=30)
    assert heads[0].startswith("POST /tools/locks/locks/a:b/lease HTTP/1.1\r\n")
    assert header(heads[0], "host") == url.removeprefix("http://")
    assert header(heads[0], "authorization") == "Bearer sk-x"


@both
@pytest.mark.parametrize("proxied", [False, True])
async def test_a_response_to_another_request_closes_the_connection(
    kind: str, proxied: bool, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = b"HTTP/1.1 201 Created\r\nX-Volcano-Request-Id: 5f0c8a1e-0000-4000-8000-00000000000b\r\n"

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(other + GRANTED.partition(b"\r\n")[2].replace(b": 7}", b": 6}") if number == 0 else GRANTED)
        connection.request()

    with socket_server(serve) as url:
        if proxied:
            monkeypatch.setenv("HTTP_PROXY", url)
        async with target_at("http://locks.invalid" if proxied else url, kind, clock) as target:
            lease = await target.acquire("k", ttl=30)
    assert lease.fencing_token == 7


@pytest.mark.real_time
@both
async def test_a_trickling_server_is_cut_off_at_the_time_limit(kind: str, clock: ManualClock) -> None:
    """SDK-4, case 6: the limit applies to the whole request."""
    trickling = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n{")
        trickling.set()

    with socket_server(serve) as url:
        async with target_at(url, kind, clock) as target:
            acquiring = asyncio.ensure_future(target.acquire("k", ttl=5))
            while not acquiring.done():
                if trickling.is_set() and clock.next_due() < float("inf"):
                    clock.jump(clock.next_due() - clock.now())
                await asyncio.sleep(0.001)
            with pytest.raises(TransportError, match="no response within 5 seconds"):
                acquiring.result()
    assert clock.now() - 1000 <= 5 + 5 + 2


@both
@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 201\r\nContent-Length: 9\r\n\r\n{"])
async def test_a_response_that_is_not_http_is_an_error(kind: str, raw: bytes, clock: ManualClock) -> None:
    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(raw)
        connection.sock.shutdown(socket.SHUT_RDWR)

    with socket_server(serve) as url:
        async with target_at(url, kind, clock) as target:
            with pytest.raises((TransportError, ServerError)):
                await target.get("k")


@both
async def test_a_response_has_a_length_limit(kind: str, clock: ManualClock) -> None:
    """The sender must not decide how much memory this process uses."""

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (RESPONSE_BYTES_MAX + 1))
        connection.respond(b'{"held": false}'.ljust(RESPONSE_BYTES_MAX + 1))

    with socket_server(serve) as url:
        async with target_at(url, kind, clock) as target:
            with pytest.raises(TransportError, match="response longer than 65536 bytes"):
                await target.get("k")


@both
async def test_a_doubled_request_id_is_compared_by_its_first_value(kind: str, clock: ManualClock) -> None:
    """SDK-9, case 83: a proxy on the way repeated the header."""

    def serve(connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            field = b"X-Volcano-Request-Id: %b\r\n" % header(head, "X-Volcano-Request-Id").encode()
            connection.respond(GRANTED.replace(b"\r\n", b"\r\n" + field + field, 1))

    with socket_server(serve) as url:
        async with target_at(url, kind, clock) as target:
            assert (await target.acquire("k", ttl=30)).fencing_token == 7


@both
async def test_an_ipv6_address_is_connected_to(kind: str, clock: ManualClock) -> None:
    heads: list[str] = []

    def serve(connection: ServerConnection, number: int) -> None:
        heads.append(connection.request())
        connection.respond(GRANTED)

    with socket_server(serve, "::1") as url:
        async with target_at(url, kind, clock) as target:
            await target.acquire("k", ttl=30)
    assert url.startswith("http://[::1]:")
    assert header(heads[0], "host") == url.removeprefix("http://")


@both
async def test_an_unreachable_server_is_reported_without_secrets(kind: str, clock: ManualClock) -> None:
    """SDK-8, SDK-9: a `TransportError` with `request_sent` False."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    token = "11111111-2222-4333-8444-555555555555"
    async with target_at(f"http://127.0.0.1:{port}", kind, clock) as target:
        with pytest.raises(TransportError, match="POST /locks/k/lease: cannot connect: ") as failed:
            await target.acquire("k", ttl=30, token=token)
    assert failed.value.request_sent is False
    assert failed.value.request_id is not None
    assert "sk-x" not in str(failed.value)
    assert token not in str(failed.value)
    assert (failed.value.status, failed.value.code) == (None, None)


@both
async def test_a_holder_keeps_its_lock_over_real_connections(kind: str, clock: ManualClock, server_url: str) -> None:
    """SDK-3: the whole path, sockets included."""
    async with target_at(server_url, kind, clock) as target:
        async with target.hold("k", ttl=30) as guard:
            await clock.advance_async(60)
            assert not guard.lost
        assert not (await target.get("k")).held


@pytest.mark.usefixtures("dropped_sockets")
def test_a_child_that_runs_its_parents_loop_opens_its_own_connection() -> None:
    """case 36: two processes on one connection would read each other's responses."""

    def serve(connection: ServerConnection, number: int) -> None:
        while connection.request():
            body = b'{"held": true, "expires_at": "2026-07-20T14:00:10Z", "fencing_token": %d}' % (number + 1)
            connection.respond(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with socket_server(serve) as url, contextlib.closing(asyncio.new_event_loop()) as loop:
        client = AsyncClient(url, "sk-x")

        def connection() -> int | None:
            return loop.run_until_complete(client.locks.get("k")).fencing_token

        assert (connection(), connection()) == (1, 1)
        assert in_a_fork(lambda: str(connection())) == "2"
        loop.run_until_complete(client.close())


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_idle_connections_are_closed_after_a_burst(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with one request at a time keeps one connection."""
    for package in ("sync", "asyncio"):
        monkeypatch.setattr(f"volcano_locks.{package}.pool.KEEP_ALIVE_SECONDS", 0.5)
    burst = threading.Barrier(3)
    closed = threading.Semaphore(0)

    def serve(connection: ServerConnection, number: int) -> None:
        while connection.request():
            if number < 3:
                with contextlib.suppress(threading.BrokenBarrierError):
                    burst.wait(20)
            connection.respond(GRANTED)
        closed.release()

    with socket_server(serve) as url:
        client = AsyncClient(url, "sk-x") if kind == "asyncio" else Client(url, "sk-x")

        async def send() -> None:
            if isinstance(client, AsyncClient):
                await client.locks.acquire("k", ttl=30)
            else:
                await asyncio.to_thread(client.locks.acquire, "k", ttl=30)

        await asyncio.gather(send(), send(), send())
        burst.abort()
        ended, give_up_at = 0, time.monotonic() + 30
        while ended < 2 and time.monotonic() < give_up_at:
            await send()
            await asyncio.sleep(0.01)
            ended += closed.acquire(blocking=False)
        assert ended == 2
        if isinstance(client, AsyncClient):
            await client.close()
        else:
            client.close()
