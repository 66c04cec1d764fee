"""What only real connections can do: close while idle, trickle, stay silent, say nothing of HTTP."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from volcano_locks import AsyncClient, Client, ServerError, TransportError
from volcano_locks.http import pool
from volcano_locks.http.pool import LOOK_AFTER_SECONDS
from volcano_locks.sync import socket_pool
from volcano_locks.testing import ManualClock

from .conftest import AsyncFace, Face, SyncFace, in_a_fork

GRANT = b'{"expires_at": "2026-07-20T14:00:10.123Z", "fencing_token": 7}'
GRANTED = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s" % (len(GRANT), GRANT)


class Line:
    """One accepted connection, and the request heads that came over it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def request(self) -> str:
        """The head of the next request; empty at the end of the connection."""
        head = b""
        while b"\r\n\r\n" not in head:
            with contextlib.suppress(ConnectionError):
                if piece := self.sock.recv(1):
                    head += piece
                    continue
            return ""
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while length:
            length -= len(self.sock.recv(length))
        return head.decode()

    def answer(self, raw: bytes) -> None:
        self.sock.sendall(raw)

    def reset(self) -> None:
        """Close so that the peer sees ECONNRESET, as a server that gave the connection up does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@contextlib.contextmanager
def listening(serve: Callable[[Line, int], None]) -> Iterator[str]:
    """`serve(line, n)` acts the server on the n-th connection, in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def accept() -> None:
        for number in range(100):
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=act, args=(sock, number), daemon=True).start()

    def act(sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(OSError):
            serve(Line(sock), number)
            over.wait(20)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextlib.asynccontextmanager
async def face_at(url: str, kind: str, clock: ManualClock):  # type: ignore[no-untyped-def]
    face: Face = (
        SyncFace(Client(url, "sk-x", clock=clock))
        if kind == "sync"
        else AsyncFace(AsyncClient(url, "sk-x", clock=clock))
    )
    try:
        yield face
    finally:
        await face.close()


both = pytest.mark.parametrize("kind", ["sync", "async"])


def header(head: str, name: str) -> str:
    return next(line.split(": ", 1)[1] for line in head.split("\r\n") if line.lower().startswith(name.lower()))


@both
async def test_a_connection_that_dies_under_a_post_costs_one_retry_with_the_same_ids(
    kind: str, clock: ManualClock
) -> None:
    """case 32, SDK-1, SDK-2: the idle connection is reset just as the second acquire goes out on it."""
    heads: list[str] = []

    def serve(line: Line, number: int) -> None:
        if number == 0:
            line.request()
            line.answer(GRANTED)
            heads.append(line.request())
            line.reset()
        else:
            heads.append(line.request())
            line.answer(GRANTED)

    with listening(serve) as url:
        async with face_at(url, kind, clock) as face:
            await face.acquire("a", ttl=30)
            await face.acquire("b", ttl=30)
    assert len(heads) == 2
    for name in ("X-Volcano-Lock-Token", "X-Volcano-Request-Id"):
        assert header(heads[0], name) == header(heads[1], name)


@both
async def test_requests_follow_each_other_on_one_connection_and_not_side_by_side(kind: str, clock: ManualClock) -> None:
    """A request that waits for its answer has its connection to itself."""
    together = threading.Barrier(2)
    came: list[tuple[int, str]] = []

    def serve(line: Line, number: int) -> None:
        while head := line.request():
            came.append((number, head.split()[1]))
            if "/locks/side" in head:
                together.wait(20)
            line.answer(GRANTED)

    with listening(serve) as url:
        async with face_at(url, kind, clock) as face:
            for key in ("a", "b"):
                await face.acquire(key, ttl=30)
            await asyncio.gather(face.acquire("side-a", ttl=30), face.acquire("side-b", ttl=30))
    assert came[:2] == [(0, "/locks/a/lease"), (0, "/locks/b/lease")]
    assert {number for number, _ in came[2:]} == {0, 1}


@pytest.mark.real_time
def test_a_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    """case 32: a force release is never sent twice, so the closed connection has to be seen before it is used. An
    event loop that stood still sees it only when it is asked to."""
    closed = threading.Event()

    def serve(line: Line, number: int) -> None:
        line.request()
        line.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        line.sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    with listening(serve) as url, contextlib.closing(asyncio.new_event_loop()) as loop:
        client = AsyncClient(url, "sk-x")
        for key in ("a", "b"):
            loop.run_until_complete(client.locks.force_release(key))
            assert closed.wait(20)
            closed.clear()
            time.sleep(2 * LOOK_AFTER_SECONDS)
        loop.run_until_complete(client.close())


@both
async def test_an_address_with_a_path_keeps_it(kind: str, clock: ManualClock) -> None:
    heads: list[str] = []

    def serve(line: Line, number: int) -> None:
        heads.append(line.request())
        line.answer(GRANTED)

    with listening(serve) as url:
        async with face_at(f"{url}/tools/locks/", kind, clock) as face:
            await face.acquire("a:b", ttl=30)
    assert heads[0].startswith("POST /tools/locks/locks/a:b/lease HTTP/1.1\r\n")
    assert header(heads[0], "host") == url.removeprefix("http://")
    assert header(heads[0], "authorization") == "Bearer sk-x"


@both
async def test_a_proxy_that_is_set_is_used(kind: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address itself cannot be reached here."""
    heads: list[str] = []

    def serve(line: Line, number: int) -> None:
        heads.append(line.request())
        line.answer(GRANTED)

    with listening(serve) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        async with face_at("http://locks.invalid", kind, clock) as face:
            await face.acquire("k", ttl=30)
    assert heads[0].startswith("POST http://locks.invalid/locks/k/lease HTTP/1.1\r\n")


@both
@pytest.mark.parametrize("proxied", [False, True])
async def test_an_answer_to_another_request_ends_its_connection(
    kind: str, proxied: bool, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = b"HTTP/1.1 201 Created\r\nX-Volcano-Request-Id: 5f0c8a1e-0000-4000-8000-00000000000b\r\n"

    def serve(line: Line, number: int) -> None:
        line.request()
        line.answer(other + GRANTED.partition(b"\r\n")[2].replace(b": 7}", b": 6}") if number == 0 else GRANTED)
        line.request()

    with listening(serve) as url:
        if proxied:
            monkeypatch.setenv("HTTP_PROXY", url)
        async with face_at("http://locks.invalid" if proxied else url, kind, clock) as face:
            lease = await face.acquire("k", ttl=30)
    assert lease.fencing_token == 7


@pytest.mark.real_time
@both
async def test_a_server_that_trickles_is_cut_off_at_the_requests_time(kind: str, clock: ManualClock) -> None:
    """SDK-4, case 6: the limit is on the whole request; a byte now and then does not stretch it."""
    trickling = threading.Event()

    def serve(line: Line, number: int) -> None:
        line.request()
        line.answer(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n{")
        trickling.set()

    with listening(serve) as url:
        async with face_at(url, kind, clock) as face:
            acquiring = asyncio.ensure_future(face.acquire("k", ttl=5))
            while not acquiring.done():
                if trickling.is_set() and clock.next_due() < float("inf"):
                    clock.jump(clock.next_due() - clock.now())
                await asyncio.sleep(0.001)
            with pytest.raises(TransportError, match="no answer within 5 seconds"):
                acquiring.result()
    assert clock.now() - 1000 <= 5 + 5 + 2


@both
@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 201\r\nContent-Length: 9\r\n\r\n{"])
async def test_what_is_no_http_is_a_transport_error(kind: str, raw: bytes, clock: ManualClock) -> None:
    def serve(line: Line, number: int) -> None:
        line.request()
        line.answer(raw)
        line.sock.shutdown(socket.SHUT_RDWR)

    with listening(serve) as url:
        async with face_at(url, kind, clock) as face:
            with pytest.raises((TransportError, ServerError)):
                await face.get("k")


@both
async def test_nobody_listening_is_told_at_once_and_without_secrets(kind: str, clock: ManualClock) -> None:
    """SDK-8, SDK-9: a `TransportError` which says that nothing was sent."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    token = "11111111-2222-4333-8444-555555555555"
    async with face_at(f"http://127.0.0.1:{port}", kind, clock) as face:
        with pytest.raises(TransportError, match="POST /locks/k/lease: cannot connect: ") as failed:
            await face.acquire("k", ttl=30, token=token)
    assert failed.value.request_sent is False
    assert failed.value.request_id is not None
    assert "sk-x" not in str(failed.value)
    assert token not in str(failed.value)
    assert (failed.value.status, failed.value.code) == (None, None)


@both
async def test_a_holder_keeps_its_lock_over_real_connections(kind: str, clock: ManualClock, wire_url: str) -> None:
    """SDK-3: the whole way, sockets included."""
    async with face_at(wire_url, kind, clock) as face:
        async with face.hold("k", ttl=30) as guard:
            await clock.advance_async(60)
            assert not guard.lost
        assert not (await face.get("k")).held


def test_a_child_that_runs_its_parents_loop_opens_its_own_connection() -> None:
    """case 36: two processes on one connection would read each other's answers."""

    def serve(line: Line, number: int) -> None:
        while line.request():
            body = b'{"held": true, "expires_at": "2026-07-20T14:00:10Z", "fencing_token": %d}' % (number + 1)
            line.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with listening(serve) as url, contextlib.closing(asyncio.new_event_loop()) as loop:
        client = AsyncClient(url, "sk-x")

        def connection() -> int | None:
            return loop.run_until_complete(client.locks.get("k")).fencing_token

        assert (connection(), connection()) == (1, 1)
        assert in_a_fork(lambda: str(connection())) == "2"
        loop.run_until_complete(client.close())


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_a_crowd_that_has_gone_leaves_no_connections_behind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes on with one request at a time keeps one connection."""
    monkeypatch.setattr(pool, "KEEP_ALIVE_SECONDS", 0.5)
    monkeypatch.setattr(socket_pool, "KEEP_ALIVE_SECONDS", 0.5)
    crowd = threading.Barrier(3)
    left = threading.Semaphore(0)

    def serve(line: Line, number: int) -> None:
        while line.request():
            if number < 3:
                with contextlib.suppress(threading.BrokenBarrierError):
                    crowd.wait(20)
            line.answer(GRANTED)
        left.release()

    with listening(serve) as url:
        client = AsyncClient(url, "sk-x") if kind == "asyncio" else Client(url, "sk-x")

        async def ask() -> None:
            if isinstance(client, AsyncClient):
                await client.locks.acquire("k", ttl=30)
            else:
                await asyncio.to_thread(client.locks.acquire, "k", ttl=30)

        await asyncio.gather(ask(), ask(), ask())
        crowd.abort()
        ended, give_up = 0, time.monotonic() + 30
        while ended < 2 and time.monotonic() < give_up:
            await ask()
            await asyncio.sleep(0.01)
            ended += left.acquire(blocking=False)
        assert ended == 2
        if isinstance(client, AsyncClient):
            await client.close()
        else:
            client.close()
