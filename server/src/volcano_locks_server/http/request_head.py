"""The head of a request: the fields that are kept, the address, and the framing of the body (HTTP-26)."""

from typing import Final

from ..rules.errors import LockError
from ..rules.values import shown
from .codec import CONTENT_LENGTH, FIELDS_READ, SENT_REPEATEDLY, X_FORWARDED_FOR

HTTP_1_1: Final = "1.1"
VERSIONS: Final = ("1.0", HTTP_1_1)  # the parser reads HTTP/0.9 and HTTP/2.0 as if they were one of these
LENGTH_DIGITS_MAX: Final = 20  # of the longest length that the parser can count
_EXPECT: Final = b"expect"
_TRANSFER_ENCODING: Final = b"transfer-encoding"
_FRAMING: Final = (CONTENT_LENGTH, _TRANSFER_ENCODING)
FIELDS_KEPT: Final = FIELDS_READ | {_EXPECT, *_FRAMING}


class RequestHead:
    """A request's head without its address; `fields` has only FIELDS_KEPT.

    `is_plain`: this is HTTP/1.1 on a connection that stays open, without chunks and expectations. `body_length` is the
    declared one, 0 if none is declared.
    """

    __slots__ = ("body_length", "fields", "is_plain", "keep_alive", "method", "version")

    def __init__(self, method: bytes, version: str, fields: dict[bytes, bytes], *, keep_alive: bool) -> None:
        """Raises LockError `invalid_request` for a body whose length other programs may read in another way."""
        is_1_1 = version == HTTP_1_1
        length, coding = fields.get(CONTENT_LENGTH), fields.get(_TRANSFER_ENCODING)
        if coding is not None:
            _check_coding(coding, version)
        self.method: Final = method.decode("ascii")
        self.version: Final = version
        self.fields: Final = fields
        self.keep_alive: Final = keep_alive and is_1_1
        self.body_length: Final = 0 if length is None else _length(length)
        self.is_plain: Final = self.keep_alive and coding is None and _EXPECT not in fields

    @property
    def is_chunked(self) -> bool:
        return _TRANSFER_ENCODING in self.fields

    @property
    def expects_continue(self) -> bool:
        return self.version == HTTP_1_1 and self.fields.get(_EXPECT, b"").lower() == b"100-continue"

    def framing(self) -> bytes:
        """A head with the same body length, without an offer to upgrade."""
        fields = [b"%b: %b\r\n" % field for field in self.fields.items() if field[0] in _FRAMING]
        return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(fields)


def _length(length: bytes) -> int:
    if not (length.isdigit() and len(length) <= LENGTH_DIGITS_MAX):
        sent = shown(length.decode("latin-1"))
        raise LockError("invalid_request", f"Content-Length must be 1 to {LENGTH_DIGITS_MAX} digits; got {sent}")
    return int(length)


def _check_coding(coding: bytes, version: str) -> None:
    if coding.lower() != b"chunked":
        sent = shown(coding.decode("latin-1"))
        raise LockError("invalid_request", f"Transfer-Encoding must be chunked or be left out; got {sent}")
    if version < HTTP_1_1:
        raise LockError("invalid_request", f"Transfer-Encoding needs HTTP/{HTTP_1_1}; got HTTP/{version}")


def repeated(name: bytes, before: bytes, value: bytes) -> bytes:
    """What to keep of a field that was sent `before` too. Some proxies add an X-Forwarded-For beside the client's."""
    return b"%b,%b" % (before, value) if name == X_FORWARDED_FOR else SENT_REPEATEDLY


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target that the parser accepted; neither is decoded."""
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/"):
        _, has_scheme, rest = path.partition(b"://")  # the absolute form
        path = b"/" + rest.partition(b"/")[2] if has_scheme else path
    return path, query
