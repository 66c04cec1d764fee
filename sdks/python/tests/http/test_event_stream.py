"""Event streams over real sockets (SDK-14)."""

import asyncio
import threading

import pytest

from volcano_locks import AsyncClient, AuthenticationError, Client, Leadership
from volcano_locks.asyncio.connection import UNREAD_BYTES_MAX
from volcano_locks.asyncio.pool import AsyncioPool

from ..socket_server import ServerConnection, header, socket_server

pytestmark = pytest.mark.real_time

FREE = (
    b'{"key": "k", "held": false, "holder": null, "acquired_at": null, "renewed_at": null, "expires_at": null, '
    b'"ttl_seconds": null, "fencing_token": 3, "waiters": 0}'
)
HELD = (
    b'{"key": "k", "held": true, "holder": "h", "acquired_at": "2026-01-01T00:00:00Z", '
    b'"renewed_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T00:00:30Z", "ttl_seconds": 30, '
    b'"fencing_token": 4, "waiters": 0}'
)
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream ; Charset=UTF-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def complete(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def acquired(number: int, token: int) -> bytes:
    data = b'{"key":"k","fencing_token":%d,"holder":"h","at":"2026-01-01T00:00:00Z","why":"free"}' % token
    return b"id: a-%d\nevent: acquired\ndata: %b\n\n" % (number, data)


class BreakingStreamServer:
    """A server whose first stream breaks after an event; the second one resumes there."""

    def __init__(self) -> None:
        self.streams: list[str] = []
        self.may_break = threading.Event()
        self.closed = threading.Event()

    def __call__(self, connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            if "/events" not in head:
                connection.respond(complete(FREE if len(self.streams) < 2 else HELD))
                continue
            self.streams.append(head)
            if len(self.streams) == 1:
                connection.respond(BEGUN + chunk(b": hello\nid: a-0\nretry: 1000\n\n"))
                for byte in chunk(acquired(1, 4)):
                    connection.respond(bytes([byte]))
                connection.respond(b"5\r\nid: ")
                self.may_break.wait(30)
                connection.reset()
                return
            connection.respond(BEGUN + chunk(b": hello\nid: a-1\n\n") + chunk(acquired(2, 5)))
            connection.request()
            self.closed.set()


EXPECTED = [Leadership(False), Leadership(True, "h", 4), Leadership(True, "h", 5)]


async def test_a_stream_that_breaks_is_resumed_in_asyncio() -> None:
    """SDK-14: with the id of the last complete event. SDK-9: the media type is compared without case."""
    server = BreakingStreamServer()
    with socket_server(server) as url:
        async with AsyncClient(url, "sk-x") as client:
            changes = client.locks.watch("k")
            changes_seen = [await anext(changes) for _ in range(2)]
            server.may_break.set()
            changes_seen.append(await anext(changes))
            await changes.aclose()
            assert await asyncio.to_thread(server.closed.wait, 30)
    assert changes_seen == EXPECTED
    assert [header(head, "Last-Event-ID") if "Last-Event-ID" in head else None for head in server.streams] == [
        None,
        "a-1",
    ]
    assert "\r\nAccept: text/event-stream\r\n" in server.streams[0]


def test_a_stream_that_breaks_is_resumed_in_a_thread() -> None:
    server = BreakingStreamServer()
    with socket_server(server) as url, Client(url, "sk-x") as client:
        changes = client.locks.watch("k")
        changes_seen = [next(changes) for _ in range(2)]
        server.may_break.set()
        changes_seen.append(next(changes))
        assert changes_seen == EXPECTED
        del changes
        assert server.closed.wait(30)


@pytest.mark.parametrize("ended", [b"0\r\n\r\n", b""])
async def test_a_stream_that_ends_unread_causes_no_work(ended: bytes) -> None:
    """SDK-14: the next read finds the end and reconnects; until then nothing happens."""
    closed = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            if "/events" not in head:
                connection.respond(complete(FREE))
                continue
            connection.respond(BEGUN + chunk(b": hello\nid: a-0\n\n") + ended)
            connection.sock.close()
            closed.set()
            return

    with socket_server(serve) as url:
        async with AsyncClient(url, "sk-x") as client:
            changes = client.locks.watch("k")
            assert await anext(changes) == Leadership(False)
            assert await asyncio.to_thread(closed.wait, 30)
            for _ in range(20):
                await asyncio.sleep(0.005)
            await changes.aclose()


async def test_a_refused_stream_raises_its_error() -> None:
    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(complete(b'{"error": "no such key", "code": "invalid_credentials"}', b"401 Unauthorized"))

    with socket_server(serve) as url:
        async with AsyncClient(url, "sk-x") as client:
            with pytest.raises(AuthenticationError, match="no such key"):
                await anext(client.locks.watch("k"))


async def test_unread_data_is_bounded() -> None:
    """A slow reader slows the server down; unread data is bounded."""
    sent = 0
    stop = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        nonlocal sent
        while head := connection.request():
            if "/events" not in head:
                connection.respond(complete(FREE))
                continue
            connection.respond(BEGUN + chunk(b": hello\nid: a-0\n\n"))
            comment = chunk(b":" + b"x" * 60_000 + b"\n\n")
            while not stop.is_set() and sent < 1_000:
                connection.respond(comment)
                sent += 1

    with socket_server(serve) as url:
        async with AsyncClient(url, "sk-x") as client:
            changes = client.locks.watch("k")
            assert await anext(changes) == Leadership(False)
            pool = client.locks._driver._state().pool
            assert isinstance(pool, AsyncioPool)
            [stream] = [one for one in pool._open if one not in pool._idle]
            for _ in range(100):
                await asyncio.sleep(0.005)
            assert UNREAD_BYTES_MAX < len(stream._unread) < 10 * UNREAD_BYTES_MAX
            assert sent < 1_000
            await changes.aclose()
        stop.set()
