"""Reading one HTTP/1.1 answer from what comes over a connection, without a connection.

A plain answer says its length and nothing that changes how it is to be read: that is all this service's own
server sends, and it is read in one look. Any other (chunked, ended by closing, several interim answers, a proxy's
page) goes through h11, and its connection is not used again. What neither takes for one whole answer of bearable
length is none, nor is an answer that names another request's id.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import h11

ANSWER_BYTES_MAX = 65_536
HEAD_BYTES_MAX = 16_384

Fields = Sequence[tuple[bytes, bytes]]

_HEAD = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) [ -~]*\r\n((?:[0-9A-Za-z_-]+:[\t -~]*\r\n)*)\r\n")
_FIELD = re.compile(rb"([0-9A-Za-z_-]+):[\t ]*([\t -~]*?)[\t ]*\r\n")
_LENGTH = re.compile(r"[0-9]{1,6}")
_REQUEST_ID = "x-volcano-request-id"
_BODILESS = frozenset({204, 304})
_CUT_OFF = "the connection was closed before the response was complete"


class BrokenAnswerError(Exception):
    """What came is no whole HTTP answer, or too long a one."""


class Received(NamedTuple):
    """One whole answer. `headers` has lower-case names; of a name that comes twice, the values joined by a comma."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Reader:
    """Reads the answer to one request. `plain` turns false with the first sign that it is no plain one."""

    def __init__(self, to: bytes = b"") -> None:
        self.plain = True
        self._to = to
        self._method = to[: to.find(b" ")]
        self._came = bytearray()
        self._head: tuple[int, dict[str, str], int, int] | None = None
        self._unusual: _Unusual | None = None

    def take(self, data: bytes) -> Received | None:
        """The answer once `data` completes it; no data is the end of the connection. Raises BrokenAnswerError."""
        received = self._taken(data)
        if received is not None:
            check_whose(received.headers, self._to)
        return received

    def _taken(self, data: bytes) -> Received | None:
        if self._unusual is not None:
            return self._unusual.take(data)
        self._came += data
        if data and self._head is None:
            self._head = self._read_head()
        if data and self.plain:
            if self._head is None:
                return None
            status, headers, begin, end = self._head
            if len(self._came) < end:
                return None
            if len(self._came) == end:
                return Received(status, headers, bytes(self._came[begin:end]))
        self.plain = False
        self._unusual = _Unusual(self._method)
        whole = bytes(self._came)
        received = self._unusual.take(whole) if whole else None
        return received if data or received is not None else self._unusual.take(b"")

    def _read_head(self) -> tuple[int, dict[str, str], int, int] | None:
        """Status, headers, and where the body begins and ends; None while the head is not whole, or is not plain."""
        if self._came.find(b"\r\n\r\n") < 0:
            self.plain = len(self._came) <= HEAD_BYTES_MAX
            return None
        match = _HEAD.match(self._came)
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
        return (status, headers, match.end(), match.end() + _fitting(int(length))) if self.plain else None


class _Unusual:
    """An answer that h11 reads."""

    def __init__(self, method: bytes) -> None:
        import h11  # noqa: PLC0415 - seldom needed

        self._h11 = h11
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method=method, target="/", headers=[("Host", "-")]))
        self._http.send(h11.EndOfMessage())
        self._head: h11.Response | None = None
        self._body = bytearray()

    def take(self, data: bytes) -> Received | None:
        h11 = self._h11
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    self._body += event.data
                    _fitting(len(self._body))
                elif isinstance(event, h11.Response):
                    self._head = event
                elif isinstance(event, h11.EndOfMessage):
                    assert self._head is not None
                    return Received(self._head.status_code, _joined(self._head.headers), bytes(self._body))
                elif not isinstance(event, h11.InformationalResponse):
                    raise BrokenAnswerError(_CUT_OFF)
        except h11.RemoteProtocolError as error:
            raise BrokenAnswerError(why_unreadable(error, data)) from error
        return None


def why_unreadable(error: Exception, data: bytes) -> str:
    """The message for a response that h11 rejects; without `data`, the connection was closed."""
    return f"the response is not HTTP: {error}" if data else _CUT_OFF


def check_whose(headers: Mapping[str, str], asked: bytes) -> None:
    """That the request id an answer names, if it names one, is among what was `asked`.

    An answer that comes unasked, just as a request goes out, would pass for that one's. Raises BrokenAnswerError.
    """
    request_id = headers.get(_REQUEST_ID)
    if request_id is not None and request_id.lower().encode(errors="replace") not in asked.lower():
        raise BrokenAnswerError("what came is the answer to another request")


def _fitting(length: int) -> int:
    if length > ANSWER_BYTES_MAX:
        raise BrokenAnswerError(f"answer longer than {ANSWER_BYTES_MAX} bytes")
    return length


def _joined(fields: "h11._headers.Headers") -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
