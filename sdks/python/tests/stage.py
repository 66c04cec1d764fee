"""A stage for flows: a clock, and the answers one after the other; no network, no event loop, no waiting."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from volcano_locks import Lease, TransportError
from volcano_locks.protocol.effects import Flow, Request, Sleep
from volcano_locks.protocol.lock_operations import LockFlows
from volcano_locks.protocol.messages import Answer

TOKEN = "11111111-2222-4333-8444-555555555555"
RID = "aaaaaaaa-2222-4333-8444-555555555555"
TERM = {"expires_at": "2026-07-20T14:00:10Z", "fencing_token": 7}
LEASE = Lease("k", TOKEN, 30, datetime(2026, 7, 20, tzinfo=UTC), 7, deadline=130.0)

GRANT = Answer(201, {}, json.dumps(TERM).encode())
RENEWED = Answer(200, {}, json.dumps(TERM).encode())
DONE = Answer(204, {}, b"")
RESET = TransportError("reset")
UNREACHABLE = TransportError("refused", request_sent=False)


def refused(status: int, code: str, **headers: str) -> Answer:
    return Answer(status, headers, json.dumps({"error": code, "code": code}).encode())


HELD = refused(409, "lock_held")
LOST = refused(409, "lock_ownership_lost")
BUSY = Answer(503, {"retry-after": "1"}, b'{"error": "no store", "code": "lock_service_unavailable"}')


@dataclass
class Stage:
    """A clock and what a flow asked for."""

    seconds: float = 100.0
    asked: list[Request | Sleep] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def flows(self, timeout_seconds: float = 10.0) -> LockFlows:
        return LockFlows(self.now, timeout_seconds)

    def play(self, flow: Flow[Any], *answers: Answer | BaseException | Callable[[], Answer | BaseException]) -> Any:
        """The flow's result, given one answer (or failure) per request; a Sleep moves the clock."""
        remaining = list(answers)
        try:
            step = next(flow)
            while True:
                self.asked.append(step)
                if isinstance(step, Sleep):
                    self.seconds += step.seconds
                    step = flow.send(None)
                    continue
                given = remaining.pop(0)
                answer = given if isinstance(given, (Answer, BaseException)) else given()
                step = flow.throw(answer) if isinstance(answer, BaseException) else flow.send(answer)
        except StopIteration as end:
            assert not remaining, "answers nobody asked for"
            return end.value

    def verbs(self) -> list[str]:
        return [step.method if isinstance(step, Request) else f"sleep {step.seconds}" for step in self.asked]

    def requests(self) -> list[Request]:
        return [step for step in self.asked if isinstance(step, Request)]
