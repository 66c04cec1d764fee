"""What comes over a connection is one whole HTTP answer, or none: however it is cut, and whoever wrote it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_locks.http.response_reader import ANSWER_BYTES_MAX, HEAD_BYTES_MAX, BrokenAnswerError, Reader, Received

POST = b"POST /locks/k/lease HTTP/1.1\r\n\r\n"
GRANT = b'{"expires_at": "2026-07-20T14:00:10.123Z", "fencing_token": 7}'
GRANTED = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(GRANT),
    GRANT,
)


def read(*pieces: bytes) -> tuple[Received | None, Reader]:
    """What the last piece completed, and the reader."""
    reader = Reader(to=POST)
    for piece in pieces[:-1]:
        assert reader.take(piece) is None, piece
    return reader.take(pieces[-1]), reader


def pieces_of(whole: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % len(whole) for cut in cuts} - {0})
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_an_answer_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    received, reader = read(*pieces_of(GRANTED, cuts))
    assert received == (201, {"content-type": "application/json", "content-length": str(len(GRANT))}, GRANT)
    assert reader.plain


def test_an_answer_without_a_body_needs_no_length() -> None:
    for length in (b"", b"Content-Length: 0\r\n"):
        received, reader = read(b"HTTP/1.1 204 No Content\r\n%bX-RateLimit-Limit: 600\r\n\r\n" % length)
        assert received is not None
        assert (received.status, received.body, received.headers["x-ratelimit-limit"]) == (204, b"", "600")
        assert reader.plain


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nabcde"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nabcde"
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nabcde"
TWICE = b"HTTP/1.1 200 OK\r\nX: a\r\nX: b\r\nContent-Length: 5\r\n\r\nabcde"
NO_ASCII = b"HTTP/1.1 200 OK\r\nX: \xe9\r\nContent-Length: 5\r\n\r\nabcde"


@pytest.mark.parametrize("whole", [CHUNKED, INTERIM, CLOSING, OLD, TWICE, NO_ASCII])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_an_unusual_answer_is_read_and_its_connection_is_not_used_again(whole: bytes, cuts: list[int]) -> None:
    received, reader = read(*pieces_of(whole, cuts))
    assert received is not None
    assert (received.status, received.body) == (200, b"abcde")
    assert not reader.plain
    if whole == TWICE:
        assert received.headers["x"] == "a, b"


@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_an_answer_may_end_with_its_connection(cuts: list[int]) -> None:
    received, reader = read(*pieces_of(UNTIL_CLOSED, cuts), b"")
    assert received is not None
    assert (received.status, received.body, reader.plain) == (200, b"abcde", False)


@given(cut=st.integers(0, len(GRANTED) - 1))
def test_an_answer_that_ends_early_is_none(cut: int) -> None:
    """A lease must not be read out of half an answer."""
    reader = Reader(to=POST)
    if cut:
        assert reader.take(GRANTED[:cut]) is None
    with pytest.raises(BrokenAnswerError, match=r"^the connection was closed before the response was complete$"):
        reader.take(b"")


def test_what_follows_an_answer_spoils_the_connection() -> None:
    """It would be read as the answer to the next request."""
    received, reader = read(GRANTED + b"HTTP/1.1 204 No Content\r\n\r\n")
    assert received is not None
    assert received.body == GRANT
    assert not reader.plain


@pytest.mark.parametrize(
    "whole",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 2x1 Created\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_none(whole: bytes) -> None:
    def to_the_end() -> None:
        reader = Reader(to=POST)
        if reader.take(whole) is None:
            reader.take(b"")

    with pytest.raises(BrokenAnswerError):
        to_the_end()


@pytest.mark.parametrize(
    "whole",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (ANSWER_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n" + b"a" * (ANSWER_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + b"a" * 0x20000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * (ANSWER_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (10 * HEAD_BYTES_MAX),
    ],
)
def test_an_answer_has_a_limit(whole: bytes) -> None:
    """Whatever sends it does not decide how much this process remembers."""
    with pytest.raises(BrokenAnswerError):
        Reader(to=POST).take(whole)


OTHER = b"X-Volcano-Request-Id: 5f0c8a1e-0000-4000-8000-00000000000b\r\n"
MINE = b"X-Volcano-Request-Id: 5f0c8a1e-0000-4000-8000-00000000000A\r\n"


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_an_answer_to_another_request_is_none(more: bytes) -> None:
    """One that came unasked, just as this request went out, would be believed and shift all later ones."""
    asked = b"GET /locks/k HTTP/1.1\r\n%b\r\n" % MINE.lower()
    answer = b"HTTP/1.1 200 OK\r\n%b%bContent-Length: 5\r\n\r\nabcde"
    received = Reader(to=asked).take(answer % (more, MINE))
    assert received is not None
    assert received.body == b"abcde"
    with pytest.raises(BrokenAnswerError, match="another request"):
        Reader(to=asked).take(answer % (more, OTHER))
