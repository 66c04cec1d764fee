"""One simulated client process: it performs the operations of the product's Python client over the model network.

The operations are the product's (`volcano_locks.protocol`); this module is the driver. A
client has a steady clock that may drift. While it is stalled nothing in it runs, but its clock does. A client that is
gone never runs again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from conformance.history.records import OperationName, OutcomeName, RequestRecord
from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from volcano_locks.errors import ConflictError, TransportError, VolcanoError
from volcano_locks.holding.block import BlocksOfClient
from volcano_locks.http.transport import no_time_error, timeout_error
from volcano_locks.protocol.checked_operations import CheckedOperations
from volcano_locks.protocol.effects import Effect, Operation, Request, Sleep
from volcano_locks.protocol.messages import Response

from .network import Exchange, Network
from .node import Node
from .world import World, shown_token

if TYPE_CHECKING:
    from .checks.checker import Checker

TIMEOUT_SECONDS: Final = 5.0
FAILURE_SECONDS: Final = 0.5
REST_SECONDS_MAX: Final = 5.0
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
OnEnd = Callable[[Any, VolcanoError | None], None]
OnResult = Callable[[Response | VolcanoError], None]


class ClientClock:
    """The client's steady clock (`volcano_locks.clock.Clock`), as far as the operations use it."""

    def __init__(self, world: World, rate: float) -> None:
        self.rate: Final = rate
        self._world: Final = world

    def now(self) -> float:
        return self._world.now * self.rate


class Client:
    """`nodes` are those that its load balancer may choose; it stays with one until a request fails."""

    def __init__(
        self, world: World, name: str, network: Network, nodes: list[Node], *, checker: "Checker", credential: bytes
    ) -> None:
        self.name: Final = name
        self.world: Final = world
        self.random: Final = world.random_for(f"client {name}")
        self.clock: Final = ClientClock(world, 1 + self.random.uniform(-0.000_5, 0.000_5))
        self.operations: Final = CheckedOperations(self.clock.now, TIMEOUT_SECONDS)
        self.blocks: Final = BlocksOfClient()
        self.checker: Final = checker
        self.stalled_until = 0.0
        self.is_gone = False
        self.open_calls: Final[dict[Call, None]] = {}
        self._exchanges: Final[dict[Exchange, None]] = {}
        self._network: Final = network
        self._nodes: Final = nodes
        self._node = self.random.choice(nodes)
        self._credential: Final = credential

    @property
    def node(self) -> Node:
        """The node that it sends its requests to."""
        return self._node

    @property
    def is_waiting(self) -> bool:
        """Whether a request that waits is open."""
        return any(exchange.waits for exchange in self._exchanges)

    def lose_connections(self) -> None:
        """They are broken, and no node learns of it."""
        for exchange in list(self._exchanges):
            exchange.break_at_client()

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Call after that time of this client's clock, or when it runs again."""
        self.world.after(max(0.0, seconds) / self.clock.rate, self.run, call, *args)

    def run(self, call: Callable[..., None], *args: Any) -> None:
        """Call now, or when this client runs again."""
        if self.is_gone:
            return
        if self.world.now < self.stalled_until:
            self.world.at(self.stalled_until, self.run, call, *args)
        else:
            call(*args)

    def perform(self, operation: Operation[Any], on_end: OnEnd) -> "Call":
        """Perform an operation; `on_end` gets its result or its error."""
        call = Call(self, operation, on_end)
        self.open_calls[call] = None
        call.go_on(operation.send, None)
        return call

    def send(self, request: Request, on_result: OnResult) -> None:
        """Send one request. Its record is added to the history when its outcome is known."""
        if request.timeout_seconds <= 0:
            on_result(no_time_error(request))
            return
        sent = _SentRequest(self, request, on_result)
        wire_request = request.method, request.path, self._fields(request), _body(request)
        sent.exchange = exchange = self._network.send(self.name, self._node, wire_request, sent.responded)
        exchange.waits = bool(request.wait_seconds)
        self._exchanges[exchange] = None
        self.after(request.timeout_seconds, sent.time_is_up)

    def received(self, exchange: Exchange) -> None:
        """The outcome of that exchange is known."""
        del self._exchanges[exchange]

    def choose_another_node(self) -> None:
        self._node = self.random.choice(self._nodes)

    def go(self, *, says_goodbye: bool) -> None:
        """The process is gone. `says_goodbye`: the system closes its connections."""
        self.is_gone = True
        for exchange in self._exchanges if says_goodbye else ():
            exchange.close()

    def _fields(self, request: Request) -> dict[bytes, bytes]:
        fields = {
            b"authorization": self._credential,
            b"x-volcano-request-id": request.request_id.encode(),
            b"x-volcano-lock-holder": self.name.encode(),
        }
        if request.token is not None:
            fields[b"x-volcano-lock-token"] = request.token.encode()
        return fields


class _SentRequest:
    """A request of a client, from its sending until its outcome is known."""

    __slots__ = ("_client", "_number", "_on_result", "_operation", "_record", "_request", "exchange")

    def __init__(self, client: Client, request: Request, on_result: OnResult) -> None:
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
        responded_at = None if outcome == "unknown" else client.world.now
        shown = "" if token is None else f", {shown_token(token)}"
        client.world.note(client.name, f"{self._operation}: {why or outcome}{shown}", record.key)
        ended = replace(record, responded_at=responded_at, outcome=outcome, fencing_token=token)
        client.checker.request_ended(self._number, ended, was_sent=was_sent)
        self._on_result(result)


class Call:
    """One operation in progress."""

    def __init__(self, client: Client, operation: Operation[Any], on_end: OnEnd) -> None:
        self.began_at: Final = client.world.now
        self._client: Final = client
        self._operation: Final = operation
        self._on_end: Final = on_end

    def go_on(self, enter: Callable[[Any], Effect], value: Any) -> None:
        """Send a result or throw an error into the operation, and perform the effect that it yields."""
        try:
            effect = enter(value)
        except StopIteration as end:
            self._end(end.value, None)
        except VolcanoError as error:
            error.__traceback__ = None  # its frames refer to it: without them, it is freed at once
            self._end(None, error)
        else:
            if isinstance(effect, Sleep):
                self._client.after(effect.seconds, self.go_on, self._operation.send, None)
            else:
                assert isinstance(effect, Request)
                self._client.send(effect, self._result)

    def _result(self, result: Response | VolcanoError) -> None:
        if isinstance(result, VolcanoError):
            self.go_on(self._operation.throw, result)
        else:
            self._client.blocks.last_headers = result.headers
            self.go_on(self._operation.send, result)

    def _end(self, result: Any, error: VolcanoError | None) -> None:
        del self._client.open_calls[self]
        self._on_end(result, error)


def rest_seconds(error: VolcanoError) -> float:
    """How long a client rests before its next call after a failure."""
    if isinstance(error, ConflictError):
        return 0.0
    return min(float(error.retry_after or FAILURE_SECONDS), REST_SECONDS_MAX)


def parse_response(raw: bytes) -> Response:
    """The response in the bytes that a node wrote."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = dict([line.split(": ", 1) for line in lines])
    return Response(int(status_line[9:12]), headers, body)


def _body(request: Request) -> bytes:
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
