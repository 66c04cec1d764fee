"""Reads one HTTP/1.1 response from bytes, without a connection.

A plain response states its length and has no field that changes how it is read. Apart from event
streams, this service's own server sends only plain responses; one regular expression parses their head. h11 reads any
other response (chunked, ended by closing, interim, a proxy's page, an event stream), whose connection is not reused. An
incomplete or too long response is an error, and so is one that names another request's id.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from volcano_locks.protocol.messages import Response, first_value

if TYPE_CHECKING:
    import h11

RESPONSE_BYTES_MAX = 65_536
HEAD_BYTES_MAX = 16_384

_HEAD = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) [ -~]*\r\n((?:[0-9A-Za-z_-]+:[\t -~]*\r\n)*)\r\n")
_FIELD = re.compile(rb"([0-9A-Za-z_-]+):[\t ]*([\t -~]*?)[\t ]*\r\n")
_LENGTH = re.compile(r"[0-9]{1,6}")
_REQUEST_ID = "x-volcano-request-id"
_BODILESS = frozenset({204, 304})
_CUT_OFF = "the connection was closed before the response was complete"


class NotConnectedError(Exception):
    """No connection could be opened, so nothing was sent."""


class BrokenResponseError(Exception):
    """The bytes received are not a complete HTTP response, or the response is too long."""


def not_connected(why: object) -> NotConnectedError:
    """The error for a connection that could not be opened."""
    return NotConnectedError(f"cannot connect: {_reason(why)}")


def broken(why: object) -> BrokenResponseError:
    """The error for a connection that broke."""
    return BrokenResponseError(_reason(why))


def _reason(why: object) -> object:
    return f"{type(why).__name__}: {why}" if isinstance(why, OSError) else why


class ResponseReader:
    """Reads the response to `request`. `plain` turns false at the first sign of another form."""

    def __init__(self, request: bytes = b"", bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self.plain = True
        self._request = request
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._head: tuple[int, dict[str, str], int, int] | None = None
        self._stream: StreamReader | None = None

    def feed(self, data: bytes) -> Response | None:
        """Return the response when `data` completes it; empty data ends the connection. Raises BrokenResponseError."""
        if self._stream is not None:
            return self._read_by_h11(data)
        self._buffer += data
        if data and self._head is None:
            self._head = self._read_head()
        if data and self.plain:
            if self._head is None:
                return None
            status, headers, begin, end = self._head
            if len(self._buffer) < end:
                return None
            if len(self._buffer) == end:
                check_request_id(headers, self._request)
                return Response(status, headers, bytes(self._buffer[begin:end]))
        self.plain = False
        self._stream = StreamReader(self._request)
        response = self._read_by_h11(bytes(self._buffer)) if self._buffer else None
        return response if data or response is not None else self._read_by_h11(b"")

    def _read_by_h11(self, data: bytes) -> Response | None:
        stream = self._stream
        assert stream is not None
        stream.feed(data)
        self._check_length(len(stream.unread))
        if not stream.ended or stream.head is None:
            return None
        return Response(*stream.head, bytes(stream.unread))

    def _read_head(self) -> tuple[int, dict[str, str], int, int] | None:
        """Status, headers, start and end of the body; None while the head is incomplete, or if it is not plain."""
        if self._buffer.find(b"\r\n\r\n") < 0:
            self.plain = len(self._buffer) <= HEAD_BYTES_MAX
            return None
        match = _HEAD.match(self._buffer)
        fields = [] if match is None else _FIELD.findall(match[2])
        headers = {name.decode().lower(): value.decode() for name, value in fields}
        length = headers.get("content-length", "")
        if match is None or len(headers) < len(fields) or "transfer-encoding" in headers or "connection" in headers:
            self.plain = False
            return None
        status = int(match[1])
        if status in _BODILESS:
            self.plain = length in {"", "0"}
            return status, headers, match.end(), match.end()
        self.plain = _LENGTH.fullmatch(length) is not None
        if not self.plain:
            return None
        self._check_length(int(length))
        return status, headers, match.end(), match.end() + int(length)

    def _check_length(self, length: int) -> None:
        if length > self._bytes_max:
            raise BrokenResponseError(f"response longer than {self._bytes_max} bytes")


class StreamReader:
    """Reads a response with h11, as it arrives. `unread` is the body so far; the caller takes bytes from it."""

    def __init__(self, request: bytes) -> None:
        import h11  # noqa: PLC0415 - rarely needed

        self.head: tuple[int, Mapping[str, str]] | None = None
        self.unread = bytearray()
        self.ended = False
        self._h11 = h11
        self._request = request
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method=request[: request.find(b" ")], target="/", headers=[("Host", "-")]))
        self._http.send(h11.EndOfMessage())

    def feed(self, data: bytes) -> None:
        """Take what the connection received; empty data ends it. Raises BrokenResponseError."""
        h11 = self._h11
        if self.ended:
            return
        try:
            self._http.receive_data(data)
            while not self.ended and (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Data):
                    self.unread += event.data
                elif isinstance(event, h11.Response):
                    self.head = event.status_code, _joined_headers(event.headers)
                    check_request_id(self.head[1], self._request)
                elif isinstance(event, h11.EndOfMessage):
                    self.ended = True
                elif not isinstance(event, h11.InformationalResponse):
                    raise BrokenResponseError(_CUT_OFF)
        except h11.RemoteProtocolError as error:
            raise BrokenResponseError(f"the response is not HTTP: {error}" if data else _CUT_OFF) from error

    def take(self) -> bytes:
        """Remove and return what is unread."""
        data = bytes(self.unread)
        self.unread.clear()
        return data


def check_request_id(headers: Mapping[str, str], request: bytes) -> None:
    """Check that a request id in the response, if any, is that of `request`; a proxy may have doubled it (case 83).

    Otherwise an unsolicited response that arrives while a request is sent would be taken for the response to it. If
    a request has no id, the server makes one.
    """
    request_id, sent = first_value(headers.get(_REQUEST_ID, "")), request.lower()
    if request_id and _REQUEST_ID.encode() in sent and request_id.lower().encode(errors="replace") not in sent:
        raise BrokenResponseError("received the response to another request")


def _joined_headers(fields: "h11._headers.Headers") -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
