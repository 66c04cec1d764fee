"""One complete HTTP response, or an error: in whatever pieces it arrives, and whatever sent it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_locks.http.response_reader import HEAD_BYTES_MAX, RESPONSE_BYTES_MAX, BrokenResponseError, ResponseReader
from volcano_locks.protocol.messages import Response

POST = b"POST /locks/k/lease HTTP/1.1\r\n\r\n"
GRANT = b'{"expires_at": "2026-07-20T14:00:10.123Z", "fencing_token": 7}'
GRANTED = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(GRANT),
    GRANT,
)


def read(*pieces: bytes) -> tuple[Response | None, ResponseReader]:
    """The response that the last piece completed, and the reader."""
    reader = ResponseReader(POST)
    for piece in pieces[:-1]:
        assert reader.feed(piece) is None, piece
    return reader.feed(pieces[-1]), reader


def pieces_of(raw: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % len(raw) for cut in cuts} - {0})
    return [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]


@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_a_response_is_the_same_in_any_pieces(cuts: list[int]) -> None:
    response, reader = read(*pieces_of(GRANTED, cuts))
    assert response == Response(201, {"content-type": "application/json", "content-length": str(len(GRANT))}, GRANT)
    assert reader.plain


def test_a_204_needs_no_length() -> None:
    for length in (b"", b"Content-Length: 0\r\n"):
        response, reader = read(b"HTTP/1.1 204 No Content\r\n%bX-RateLimit-Limit: 600\r\n\r\n" % length)
        assert response is not None
        assert (response.status, response.body, response.headers["x-ratelimit-limit"]) == (204, b"", "600")
        assert reader.plain


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nabcde"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nabcde"
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nabcde"
TWICE = b"HTTP/1.1 200 OK\r\nX: a\r\nX: b\r\nContent-Length: 5\r\n\r\nabcde"
NO_ASCII = b"HTTP/1.1 200 OK\r\nX: \xe9\r\nContent-Length: 5\r\n\r\nabcde"


@pytest.mark.parametrize("raw", [CHUNKED, INTERIM, CLOSING, OLD, TWICE, NO_ASCII])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_another_form_of_response_is_read_and_its_connection_is_not_reused(raw: bytes, cuts: list[int]) -> None:
    response, reader = read(*pieces_of(raw, cuts))
    assert response is not None
    assert (response.status, response.body) == (200, b"abcde")
    assert not reader.plain
    if raw == TWICE:
        assert response.headers["x"] == "a, b"


@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_a_response_may_end_with_its_connection(cuts: list[int]) -> None:
    response, reader = read(*pieces_of(UNTIL_CLOSED, cuts), b"")
    assert response is not None
    assert (response.status, response.body, reader.plain) == (200, b"abcde", False)


@given(cut=st.integers(0, len(GRANTED) - 1))
def test_a_response_that_ends_early_is_an_error(cut: int) -> None:
    """A lease must not be parsed from half a response."""
    reader = ResponseReader(POST)
    if cut:
        assert reader.feed(GRANTED[:cut]) is None
    with pytest.raises(BrokenResponseError, match=r"^the connection was closed before the response was complete$"):
        reader.feed(b"")


def test_bytes_after_a_response_prevent_reuse_of_the_connection() -> None:
    """These bytes would be read as the response to the next request."""
    response, reader = read(GRANTED + b"HTTP/1.1 204 No Content\r\n\r\n")
    assert response is not None
    assert response.body == GRANT
    assert not reader.plain


@pytest.mark.parametrize(
    "raw",
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
def test_malformed_responses_are_errors(raw: bytes) -> None:
    def feed_all() -> None:
        reader = ResponseReader(POST)
        if reader.feed(raw) is None:
            reader.feed(b"")

    with pytest.raises(BrokenResponseError):
        feed_all()


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (RESPONSE_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n" + b"a" * (RESPONSE_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + b"a" * 0x20000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * (RESPONSE_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (10 * HEAD_BYTES_MAX),
    ],
)
def test_a_response_has_a_length_limit(raw: bytes) -> None:
    """The sender must not decide how much memory this process uses."""
    with pytest.raises(BrokenResponseError):
        ResponseReader(POST).feed(raw)


OTHER = b"X-Volcano-Request-Id: 5f0c8a1e-0000-4000-8000-00000000000b\r\n"
MINE = b"X-Volcano-Request-Id: 5f0c8a1e-0000-4000-8000-00000000000A\r\n"


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_a_response_to_another_request_is_an_error(more: bytes) -> None:
    """An unsolicited response would be taken for the response to this request, and shift all later ones."""
    request = b"GET /locks/k HTTP/1.1\r\n%b\r\n" % MINE.lower()
    raw = b"HTTP/1.1 200 OK\r\n%b%bContent-Length: 5\r\n\r\nabcde"
    response = ResponseReader(request).feed(raw % (more, MINE))
    assert response is not None
    assert response.body == b"abcde"
    with pytest.raises(BrokenResponseError, match="another request"):
        ResponseReader(request).feed(raw % (more, OTHER))
    assert ResponseReader(POST).feed(raw % (more, OTHER)) is not None, "the server made an id for a request without one"


@pytest.mark.parametrize("doubled", [b"%b, %b", b"%b\r\nX-Volcano-Request-Id: %b"])
def test_a_doubled_request_id_is_compared_by_its_first_value(doubled: bytes) -> None:
    """SDK-9, case 83: a proxy repeats the header, in one line or in two."""
    mine, other = (field.partition(b": ")[2].strip() for field in (MINE, OTHER))
    request = b"GET /locks/k HTTP/1.1\r\n%b\r\n" % MINE
    raw = b"HTTP/1.1 200 OK\r\nX-Volcano-Request-Id: " + doubled + b"\r\nContent-Length: 5\r\n\r\nabcde"
    for second in (mine, other):
        response = ResponseReader(request).feed(raw % (mine, second))
        assert response is not None
        assert response.body == b"abcde"
    with pytest.raises(BrokenResponseError, match="another request"):
        ResponseReader(request).feed(raw % (other, mine))
