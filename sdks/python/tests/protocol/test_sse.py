"""Parsing server-sent events (SDK-14)."""

import json

import pytest

from volcano_locks.protocol.sse import EVENT_BYTES_MAX, EventTooLongError, SseEvent, SseParser

STREAM = (
    b': hello\nid: 1-0\nretry: 1000\n\n: still here\n\nid: 1-1\r\nevent: acquired\r\ndata: {"a":\r\ndata:1}\r\n\r\n'
)


READ = [SseEvent("", "", "1-0"), SseEvent("acquired", '{"a":\n1}', "1-1")]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_stream_is_parsed_in_any_pieces(size: int) -> None:
    parser = SseParser()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in parser.feed(piece)] == READ
    assert json.loads(READ[1].data) == {"a": 1}


@pytest.mark.parametrize("more", [b"x" * 1000, b"data: y\n" * 125])
def test_an_event_without_end_is_an_error(more: bytes) -> None:
    parser = SseParser()
    with pytest.raises(EventTooLongError):  # noqa: PT012
        for _ in range(EVENT_BYTES_MAX // 500):
            parser.feed(more)


@pytest.mark.parametrize("event_id", ["a b", "ä", "", "x" * 129])
def test_an_id_that_cannot_be_a_header_is_dropped(event_id: str) -> None:
    """Remote input must not reach a request header unchecked."""
    assert SseParser().feed(f"id: {event_id}\ndata: x\n\n".encode()) == [SseEvent("", "x", None)]
