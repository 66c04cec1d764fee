"""The faults that a scenario has set, and the record of what the clients sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple
from uuid import UUID

from ..scenario.vocabulary import OPERATIONS

STREAM: Final = "stream"
STREAM_TYPE: Final = "text/event-stream"
UNLIMITED: Final = 1_000_000_000
REFUSED: Final = "drop_before"
RETRY_AFTER_STATUSES: Final = frozenset({429, 503})
_BY_REQUEST: Final = {
    ("POST", True): "acquire",
    ("PATCH", True): "renew",
    ("DELETE", True): "release",
    ("GET", False): "get",
    ("DELETE", False): "force_release",
}


def _problem(code: str) -> bytes:
    return b'{"error": "a scripted response", "code": "%s"}' % code.encode()


RESPONSES: Final[Mapping[str, tuple[int, bytes]]] = {
    "answer_503": (503, _problem("lock_service_unavailable")),
    "answer_503_empty": (503, b""),
    "answer_403": (403, _problem("missing_permission")),
    "answer_500": (500, _problem("internal")),
    "answer_429": (429, _problem("lock_rate_limited")),
    "answer_page": (502, b"<html>Bad Gateway</html>"),
}


def operation_of(method: str, path: str, accept: str | None) -> str:
    """The operation behind a request, in the words of `vocabulary.OPERATIONS`."""
    return STREAM if accept == STREAM_TYPE else _BY_REQUEST[method, path.partition("?")[0].endswith("/lease")]


@dataclass
class ScriptedFault:
    """A fault for the next `left` requests of the operations `of`. `actor` is None if it is for all actors."""

    kind: str
    left: int
    of: Sequence[str]
    actor: str | None
    delay_ms: int
    lasts_ms: int | None
    retry_after_seconds: int
    answer: Mapping[str, object]
    until: float = inf

    @classmethod
    def from_args(cls, args: Mapping[str, object]) -> "ScriptedFault":
        """From the arguments of the verb `outage`."""
        of, actor, answer = args.get("of", OPERATIONS), args.get("actor"), args.get("answer", {})
        assert isinstance(of, list | tuple)
        assert isinstance(answer, Mapping)
        return cls(
            kind=str(args["kind"]),
            left=int(str(args.get("count", UNLIMITED))),
            of=of,
            actor=None if actor is None else str(actor),
            delay_ms=int(str(args.get("delay_ms", 0))),
            lasts_ms=int(str(args["lasts_ms"])) if "lasts_ms" in args else None,
            retry_after_seconds=int(str(args.get("retry_after_seconds", 1))),
            answer=answer,
        )

    @property
    def response(self) -> tuple[int, Mapping[str, str], bytes] | None:
        """Status, headers and body of the response that replaces the server's; None for other kinds of faults."""
        if self.kind not in RESPONSES:
            return None
        status, body = RESPONSES[self.kind]
        has_retry_after = status in RETRY_AFTER_STATUSES and body
        return status, {"Retry-After": str(self.retry_after_seconds)} if has_retry_after else {}, body


def take_fault(faults: Sequence[ScriptedFault], operation: str, actor: str) -> ScriptedFault | None:
    """Return the first fault that applies to the request, and count the request against its limit."""
    for fault in faults:
        if fault.left > 0 and operation in fault.of and fault.actor in (None, actor):
            fault.left -= 1
            return fault
    return None


class _Sent(NamedTuple):
    operation: str
    token: str | None
    request_id: str


class SentRequests:
    """The requests that one actor's client sent since the last `take`."""

    def __init__(self) -> None:
        self._sent: Final[list[_Sent]] = []

    def add(self, operation: str, token: str | None, request_id: str) -> None:
        """Record one request. AssertionError if its token is not a UUID."""
        assert token is None or str(UUID(token)) == token.lower(), f"the owner token is not a UUID: {token}"
        self._sent.append(_Sent(operation, None if token is None else token.lower(), request_id.lower()))

    def take(self) -> Mapping[str, object]:
        """The result of the verb `sent`: the number of requests of each kind, of tokens and of request ids."""
        sent, self._sent[:] = list(self._sent), []
        counts = {kind: sum(one.operation == kind for one in sent) for kind in OPERATIONS}
        tokens = {one.token for one in sent if one.token is not None}
        return {**counts, "tokens": len(tokens), "request_ids": len({one.request_id for one in sent})}
