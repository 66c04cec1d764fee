"""One simulated client process: it performs the operations of the product's Python client over the model network.

The operations are the product's (`volcano_locks.protocol`); this module is the driver. A client has a steady clock that
may drift. While it is stalled nothing in it runs, but its clock does. A client that is gone never runs again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from volcano_locks.errors import ConflictError, VolcanoError
from volcano_locks.holding.block import BlocksOfClient
from volcano_locks.http.transport import no_time_error
from volcano_locks.protocol.checked_operations import CheckedOperations
from volcano_locks.protocol.effects import Effect, Operation, Request, Sleep
from volcano_locks.protocol.messages import Response

from .network import Exchange, Network
from .node import Node
from .sent_request import OnResult, SentRequest, body_of
from .world import World

if TYPE_CHECKING:
    from .checks.checker import Checker

TIMEOUT_SECONDS: Final = 5.0
FAILURE_SECONDS: Final = 0.5
REST_SECONDS_MAX: Final = 5.0
OnEnd = Callable[[Any, VolcanoError | None], None]


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
        sent = SentRequest(self, request, on_result)
        wire_request = request.method, request.path, self._fields(request), body_of(request)
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
