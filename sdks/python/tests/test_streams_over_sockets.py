"""SDK-14 over real sockets: an answer that goes on, and a connection that breaks."""

import asyncio
import threading

import pytest

from volcano_locks import AsyncClient, AuthenticationError, Client, Leadership
from volcano_locks.http.stream_connection import UNREAD_BYTES_MAX

from .test_over_sockets import Line, header, listening

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
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def acquired(number: int, token: int) -> bytes:
    data = b'{"key":"k","fencing_token":%d,"holder":"h","at":"2026-01-01T00:00:00Z","why":"free"}' % token
    return b"id: a-%d\nevent: acquired\ndata: %b\n\n" % (number, data)


class Telling:
    """A server whose first stream breaks after an event, and whose second goes on where it broke."""

    def __init__(self) -> None:
        self.streams: list[str] = []
        self.may_break = threading.Event()
        self.left = threading.Event()

    def __call__(self, line: Line, number: int) -> None:
        while head := line.request():
            if "/events" not in head:
                line.answer(whole(FREE if len(self.streams) < 2 else HELD))
                continue
            self.streams.append(head)
            if len(self.streams) == 1:
                line.answer(BEGUN + chunk(b": hello\nid: a-0\nretry: 1000\n\n"))
                for byte in chunk(acquired(1, 4)):
                    line.answer(bytes([byte]))
                line.answer(b"5\r\nid: ")
                self.may_break.wait(30)
                line.reset()
                return
            line.answer(BEGUN + chunk(b": hello\nid: a-1\n\n") + chunk(acquired(2, 5)))
            line.request()
            self.left.set()


EXPECTED = [Leadership(False), Leadership(True, "h", 4), Leadership(True, "h", 5)]


async def test_a_stream_that_breaks_is_resumed_in_asyncio() -> None:
    """SDK-14: with the id of the last event that came whole."""
    server = Telling()
    with listening(server) as url:
        async with AsyncClient(url, "sk-x") as client:
            changes = client.locks.watch("k")
            told = [await anext(changes) for _ in range(2)]
            server.may_break.set()
            told.append(await anext(changes))
            await changes.aclose()
            assert await asyncio.to_thread(server.left.wait, 30)
    assert told == EXPECTED
    assert [header(head, "Last-Event-ID") if "Last-Event-ID" in head else None for head in server.streams] == [
        None,
        "a-1",
    ]
    assert "\r\nAccept: text/event-stream\r\n" in server.streams[0]


def test_a_stream_that_breaks_is_resumed_in_a_thread() -> None:
    server = Telling()
    with listening(server) as url, Client(url, "sk-x") as client:
        changes = client.locks.watch("k")
        told = [next(changes) for _ in range(2)]
        server.may_break.set()
        told.append(next(changes))
        assert told == EXPECTED
        del changes
        assert server.left.wait(30)


@pytest.mark.parametrize("ended", [b"0\r\n\r\n", b""])
async def test_a_stream_that_ends_while_nobody_reads_it_keeps_nobody_busy(ended: bytes) -> None:
    """SDK-14: its end is found by whoever asks for the next change, who connects again; until then all else goes on."""
    closed = threading.Event()

    def serve(line: Line, number: int) -> None:
        while head := line.request():
            if "/events" not in head:
                line.answer(whole(FREE))
                continue
            line.answer(BEGUN + chunk(b": hello\nid: a-0\n\n") + ended)
            line.sock.close()
            closed.set()
            return

    with listening(serve) as url:
        async with AsyncClient(url, "sk-x") as client:
            changes = client.locks.watch("k")
            assert await anext(changes) == Leadership(False)
            assert await asyncio.to_thread(closed.wait, 30)
            for _ in range(20):
                await asyncio.sleep(0.005)
            await changes.aclose()


async def test_a_refused_stream_says_why() -> None:
    def serve(line: Line, number: int) -> None:
        line.request()
        line.answer(whole(b'{"error": "no such key", "code": "invalid_credentials"}', b"401 Unauthorized"))

    with listening(serve) as url:
        async with AsyncClient(url, "sk-x") as client:
            with pytest.raises(AuthenticationError, match="no such key"):
                await anext(client.locks.watch("k"))


async def test_what_nobody_reads_is_not_taken_in_without_end() -> None:
    """A reader that is slow holds the server up; nothing piles up here."""
    sent = 0
    stop = threading.Event()

    def serve(line: Line, number: int) -> None:
        nonlocal sent
        while head := line.request():
            if "/events" not in head:
                line.answer(whole(FREE))
                continue
            line.answer(BEGUN + chunk(b": hello\nid: a-0\n\n"))
            comment = chunk(b":" + b"x" * 60_000 + b"\n\n")
            while not stop.is_set() and sent < 1_000:
                line.answer(comment)
                sent += 1

    with listening(serve) as url:
        async with AsyncClient(url, "sk-x") as client:
            changes = client.locks.watch("k")
            assert await anext(changes) == Leadership(False)
            [listener] = next(iter(client.locks._sender._sender._here.values())).wire._listeners  # type: ignore[attr-defined]
            for _ in range(100):
                await asyncio.sleep(0.005)
            assert UNREAD_BYTES_MAX < len(listener._unread) < 10 * UNREAD_BYTES_MAX
            assert sent < 1_000
            await changes.aclose()
        stop.set()
