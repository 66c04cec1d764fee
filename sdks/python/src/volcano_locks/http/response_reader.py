"""Reads one HTTP/1.1 response from bytes, without a connection.

A plain response states its length and has no field that changes how it is read. This service's own server sends only
those, and one regular expression parses their head. Every other response (chunked, ended by closing, interim responses,
a proxy's page) is read by h11, and its connection is not reused. An incomplete or too long response is an error, and so
is one that names another request's id.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from volcano_locks.protocol.messages import Response

if TYPE_CHECKING:
    import h11

RESPONSE_BYTES_MAX = 65_536
HEAD_BYTES_MAX = 16_384

Headers = Sequence[tuple[bytes, bytes]]

_HEAD = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) [ -~]*\r\n((?:[0-9A-Za-z_-]+:[\t -~]*\r\n)*)\r\n")
_FIELD = re.compile(rb"([0-9A-Za-z_-]+):[\t ]*([\t -~]*?)[\t ]*\r\n")
_LENGTH = re.compile(r"[0-9]{1,6}")
_REQUEST_ID = "x-volcano-request-id"
_BODILESS = frozenset({204, 304})
_CUT_OFF = "the connection was closed before the response was complete"


class BrokenResponseError(Exception):
    """The bytes received are no complete HTTP response, or too long a one."""


class ResponseReader:
    """Reads the response to `request`. `plain` turns false at the first sign of another form."""

    def __init__(self, request: bytes = b"") -> None:
        self.plain = True
        self._request = request
        self._method = request[: request.find(b" ")]
        self._buffer = bytearray()
        self._head: tuple[int, dict[str, str], int, int] | None = None
        self._h11_reader: _H11Reader | None = None

    def feed(self, data: bytes) -> Response | None:
        """Return the response when `data` completes it; empty data ends the connection. Raises BrokenResponseError."""
        response = self._feed(data)
        if response is not None:
            check_request_id(response.headers, self._request)
        return response

    def _feed(self, data: bytes) -> Response | None:
        if self._h11_reader is not None:
            return self._h11_reader.feed(data)
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
                return Response(status, headers, bytes(self._buffer[begin:end]))
        self.plain = False
        self._h11_reader = _H11Reader(self._method)
        buffered = bytes(self._buffer)
        response = self._h11_reader.feed(buffered) if buffered else None
        return response if data or response is not None else self._h11_reader.feed(b"")

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
        return (status, headers, match.end(), match.end() + _checked_length(int(length))) if self.plain else None


class _H11Reader:
    """Reads a response with h11."""

    def __init__(self, method: bytes) -> None:
        import h11  # noqa: PLC0415 - rarely needed

        self._h11 = h11
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method=method, target="/", headers=[("Host", "-")]))
        self._http.send(h11.EndOfMessage())
        self._head: h11.Response | None = None
        self._body = bytearray()

    def feed(self, data: bytes) -> Response | None:
        h11 = self._h11
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    self._body += event.data
                    _checked_length(len(self._body))
                elif isinstance(event, h11.Response):
                    self._head = event
                elif isinstance(event, h11.EndOfMessage):
                    assert self._head is not None
                    return Response(self._head.status_code, _joined_headers(self._head.headers), bytes(self._body))
                elif not isinstance(event, h11.InformationalResponse):
                    raise BrokenResponseError(_CUT_OFF)
        except h11.RemoteProtocolError as error:
            raise BrokenResponseError(describe_broken(error, data)) from error
        return None


def describe_broken(error: Exception, data: bytes) -> str:
    """The message for a response that h11 rejects; without `data`, the connection was closed."""
    return f"the response is not HTTP: {error}" if data else _CUT_OFF


def check_request_id(headers: Mapping[str, str], request: bytes) -> None:
    """Check that a request id in the response, if any, is that of `request`.

    Otherwise an unsolicited response that arrives as a request is sent would pass for its response.
    """
    request_id = headers.get(_REQUEST_ID)
    if request_id is not None and request_id.lower().encode(errors="replace") not in request.lower():
        raise BrokenResponseError("received the response to another request")


def _checked_length(length: int) -> int:
    if length > RESPONSE_BYTES_MAX:
        raise BrokenResponseError(f"response longer than {RESPONSE_BYTES_MAX} bytes")
    return length


def _joined_headers(fields: "h11._headers.Headers") -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
