"""Drives operations with a list of responses: no network, no event loop, no waiting."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from volcano_locks import Lease, TransportError
from volcano_locks.protocol.checked_operations import CheckedOperations
from volcano_locks.protocol.effects import Effect, Operation, Request, Sleep
from volcano_locks.protocol.messages import Response

TOKEN = "11111111-2222-4333-8444-555555555555"
RID = "aaaaaaaa-2222-4333-8444-555555555555"
TERM = {"expires_at": "2026-07-20T14:00:10Z", "fencing_token": 7}
LEASE = Lease("k", TOKEN, 30, datetime(2026, 7, 20, tzinfo=UTC), 7, deadline=130.0)

GRANT = Response(201, {}, json.dumps(TERM).encode())
RENEWED = Response(200, {}, json.dumps(TERM).encode())
DONE = Response(204, {}, b"")
RESET = TransportError("reset")
UNREACHABLE = TransportError("refused", request_sent=False)


def refused(status: int, code: str, **headers: str) -> Response:
    return Response(status, headers, json.dumps({"error": code, "code": code}).encode())


HELD = refused(409, "lock_held")
LOST = refused(409, "lock_ownership_lost")
BUSY = Response(503, {"retry-after": "1"}, b'{"error": "no store", "code": "lock_service_unavailable"}')


@dataclass
class OperationDriver:
    """A clock, and the effects that operations yielded."""

    seconds: float = 100.0
    effects: list[Effect] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def operations(self, timeout_seconds: float = 10.0) -> CheckedOperations:
        return CheckedOperations(self.now, timeout_seconds)

    def run(
        self, operation: Operation[Any], *responses: Response | BaseException | Callable[[], Response | BaseException]
    ) -> Any:
        """Return the operation's result, given one response or failure per request. A Sleep moves the clock."""
        remaining = list(responses)
        try:
            effect = next(operation)
            while True:
                self.effects.append(effect)
                if isinstance(effect, Sleep):
                    self.seconds += effect.seconds
                if not isinstance(effect, Request):
                    effect = operation.send(None)
                    continue
                next_response = remaining.pop(0)
                response = next_response if isinstance(next_response, (Response, BaseException)) else next_response()
                effect = operation.throw(response) if isinstance(response, BaseException) else operation.send(response)
        except StopIteration as end:
            assert not remaining, "more responses than requests"
            return end.value

    def methods(self) -> list[str]:
        return [
            effect.method if isinstance(effect, Request) else f"sleep {effect.seconds}"
            for effect in self.effects
            if isinstance(effect, (Request, Sleep))
        ]

    def requests(self) -> list[Request]:
        return [effect for effect in self.effects if isinstance(effect, Request)]
