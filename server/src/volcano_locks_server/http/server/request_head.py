"""The head of a request: the fields that are kept, the address, and the framing of the body (HTTP-26)."""

from typing import Final, NamedTuple

from ...rules.errors import LockError
from ...rules.values import shown
from ..codec import CONTENT_LENGTH, FIELDS_READ

HTTP_1_1: Final = "1.1"
VERSIONS: Final = ("1.0", HTTP_1_1)  # the parser reads HTTP/0.9 and HTTP/2.0 as if they were one of these
LENGTH_DIGITS_MAX: Final = 20  # of the longest length that the parser can count
_EXPECT: Final = b"expect"
_TRANSFER_ENCODING: Final = b"transfer-encoding"
_FRAMING: Final = (CONTENT_LENGTH, _TRANSFER_ENCODING)
FIELDS_KEPT: Final = FIELDS_READ | {_EXPECT, *_FRAMING}


class RequestHead(NamedTuple):
    """A request's head without its address; `fields` has only FIELDS_KEPT."""

    method: bytes
    version: str
    keep_alive: bool
    fields: dict[bytes, bytes]

    @property
    def expects_100_continue(self) -> bool:
        return self.fields.get(_EXPECT, b"").lower() == b"100-continue" and self.version >= HTTP_1_1

    def framing(self) -> bytes:
        """A head with the same body length, without an offer to upgrade."""
        fields = [b"%b: %b\r\n" % field for field in self.fields.items() if field[0] in _FRAMING]
        return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(fields)

    def check_framing(self) -> None:
        """Raise LockError `invalid_request` for a body whose length other programs may read in another way."""
        if len(self.fields.get(CONTENT_LENGTH, b"")) > LENGTH_DIGITS_MAX:
            raise LockError("invalid_request", f"Content-Length must be at most {LENGTH_DIGITS_MAX} digits; got more")
        coding = self.fields.get(_TRANSFER_ENCODING)
        if coding is None:
            return
        if coding.lower() != b"chunked":
            sent = shown(coding.decode("latin-1"))
            raise LockError("invalid_request", f"Transfer-Encoding must be chunked or be left out; got {sent}")
        if self.version < HTTP_1_1:
            raise LockError("invalid_request", f"Transfer-Encoding needs HTTP/{HTTP_1_1}; got HTTP/{self.version}")


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target that the parser accepted; neither is decoded."""
    target = target.partition(b"#")[0]
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/"):
        _, has_scheme, rest = path.partition(b"://")  # the absolute form
        path = b"/" + rest.partition(b"/")[2] if has_scheme else path
    return path, query
