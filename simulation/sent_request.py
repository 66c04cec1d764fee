"""One request of a simulated client, from its sending until its outcome is known, and its record for the checks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from conformance.history.records import OperationName, OutcomeName, RequestRecord
from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from volcano_locks.errors import TransportError, VolcanoError
from volcano_locks.http.transport import timeout_error
from volcano_locks.protocol.effects import Request
from volcano_locks.protocol.messages import Response

from .network import Exchange
from .world import shown_token

if TYPE_CHECKING:
    from .client import Client

_OPERATION: Final[dict[tuple[str, bool], OperationName]] = {
    ("POST", True): "acquire",
    ("PATCH", True): "renew",
    ("DELETE", True): "release",
    ("DELETE", False): "force_release",
    ("GET", False): "get",
}


class _Body(Struct):
    """What the checks read of a response."""

    fencing_token: int | None = None
    held: bool = False


_decode: Final = Decoder(_Body).decode
OnResult = Callable[[Response | VolcanoError], None]


class SentRequest:
    """A request of a client, from its sending until its outcome is known."""

    __slots__ = ("_client", "_number", "_on_result", "_operation", "_record", "_request", "exchange")

    def __init__(self, client: "Client", request: Request, on_result: OnResult) -> None:
        self.exchange: Exchange | None = None
        """None before it is sent, and after its outcome is known."""
        key = request.key or ""
        self._client: Final = client
        self._request: Final = request
        self._on_result: Final = on_result
        self._operation: Final = _OPERATION[request.method, request.path.endswith("/lease")]
        self._record: Final = RequestRecord(
            client.name,
            self._operation,
            key,
            request.token or "",
            client.world.now,
            None,
            "unknown",
            request.ttl_seconds or 0.0,
            wait_seconds=request.wait_seconds or 0.0,
            node=client.node.name,
        )
        self._number: Final = client.checker.request_sent(self._record)
        client.world.note(client.name, f"sends {self._operation} to {client.node.name}{_details(request)}", key)

    def responded(self, raw: bytes | None, was_sent: bool) -> None:
        """The response arrived, or the connection broke (None): the client notices when it runs."""
        self._client.run(self._responded, raw, was_sent)

    def _responded(self, raw: bytes | None, was_sent: bool) -> None:
        request = self._request
        if self.exchange is None:
            return
        if raw is None:
            self._client.choose_another_node()
            error = TransportError("the connection broke", request_sent=was_sent, request_id=request.request_id)
            self._end(error, "unknown", was_sent=was_sent, why="no response, the connection broke")
            return
        response = parse_response(raw)
        outcome, token = _outcome(self._operation, response)
        self._end(response, outcome, token, why=f"answered {response.status}" if outcome == "unknown" else "")

    def time_is_up(self) -> None:
        request = self._request
        if self.exchange is not None:
            self.exchange.close()
            self._client.choose_another_node()
            self._end(timeout_error(request, request.timeout_seconds), "unknown", why="no response in time")

    def _end(
        self,
        result: Response | VolcanoError,
        outcome: OutcomeName,
        token: int | None = None,
        *,
        was_sent: bool = True,
        why: str = "",
    ) -> None:
        client, record, exchange = self._client, self._record, self.exchange
        assert exchange is not None
        self.exchange = None
        client.received(exchange)
        shown = "" if token is None else f", {shown_token(token)}"
        client.world.note(client.name, f"{self._operation}: {why or outcome}{shown}", record.key)
        if outcome == "refused" and exchange.is_repeated:
            outcome = "unknown"  # its copy may have arrived before it and released the lock
        responded_at = None if outcome == "unknown" else client.world.now
        ended = replace(record, responded_at=responded_at, outcome=outcome, fencing_token=token)
        client.checker.request_ended(self._number, ended, was_sent=was_sent)
        self._on_result(result)


def parse_response(raw: bytes) -> Response:
    """The response in the bytes that a node wrote."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = dict([line.split(": ", 1) for line in lines])
    return Response(int(status_line[9:12]), headers, body)


def body_of(request: Request) -> bytes:
    if request.ttl_seconds is None:
        return b""
    if request.wait_seconds:
        return b'{"ttl_seconds":%d,"wait_seconds":%r}' % (request.ttl_seconds, request.wait_seconds)
    return b'{"ttl_seconds":%d}' % request.ttl_seconds


def _details(request: Request) -> str:
    token = "" if request.token is None else f", owner {request.token[:8]}"
    return token + (f", wait {request.wait_seconds:.1f} s" if request.wait_seconds else "")


def _outcome(operation: OperationName, response: Response) -> tuple[OutcomeName, int | None]:
    status = response.status
    if status in (200, 201):
        body = _decode(response.body)
        if operation == "get":
            return ("held" if body.held else "free"), body.fencing_token
        return "granted", body.fencing_token
    if status == 204:
        return "done", None
    if status == 409:
        is_held = b'"lock_held"' in response.body
        return "refused" if operation == "release" else "held" if is_held else "lost", None
    return "unknown", None
