"""One queued acquire: its state, its request, and the result of its wait.

A waiter is one owner token in the queue of one lock. Requests with that token come and go; the waiter and its turn
stay.

    event                                    from                          to
    an acquire is queued                     (new)                         JOINING
    its token acquires again (WAIT-6)        JOINING                       JOINING
                                             every other, KEPT too         REJOINING
    a batch of its lock begins               WAITING                       IN_BATCH
    the batch exceeds its time limit         IN_BATCH                      IN_LATE_BATCH
    the batch commits, the lock stays held   every state with a request    WAITING
    the batch fails                          IN_BATCH, IN_LATE_BATCH       WAITING
    the wait ends without the lock           every state with a request    KEPT
    granted, refused, cancelled, kept long   every state                   REMOVED

`timed_out` is no state: the deadline of a request can pass in JOINING, REJOINING and IN_BATCH, and the response then
waits for the evaluation or the batch (WAIT-9).
"""

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from ..ports.clock import Timer
from ..ports.lock_store import RecordKey
from ..rules.lease import Acquire, Granted, Outcome, Refused, RevokeGrant


class WaiterState(Enum):
    JOINING = auto()
    """Its first acquire is not evaluated yet; only that acquire may grant it the lock."""
    REJOINING = auto()
    """Its new acquire is not evaluated yet, but it keeps its turn: a batch may grant it the lock before that."""
    WAITING = auto()
    IN_BATCH = auto()
    """A batch that is being committed may grant it the lock."""
    IN_LATE_BATCH = auto()
    KEPT = auto()
    """No request waits; its turn is kept for WAITER_KEPT_SECONDS."""
    REMOVED = auto()


class WaitResult(NamedTuple):
    """How a wait ended. A grant has `at_ms`, its instant by the store's clock, and `began_ms`, an instant by this
    node's clock that is not after the grant. `undelivered`: the grant is revoked if no client receives it.
    """

    outcome: Granted | Refused
    at_ms: int = 0
    began_ms: int = 0
    undelivered: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Waiter:
    """Compared by identity. `result` is that of its request, None while no request waits."""

    key: RecordKey
    acquire: Acquire
    since_ms: int = 0  # by this node's clock
    state: WaiterState = WaiterState.JOINING
    result: asyncio.Future[WaitResult] | None = None
    command: asyncio.Future[Outcome | None] | None = None
    timer: Timer | None = None  # the deadline of its request, or the end of KEPT
    timed_out: bool = False
    uncertain_grant: RevokeGrant | None = None  # revokes what a failed batch may have granted
    announced: bool = False  # a `waiting` event was published for it

    def __repr__(self) -> str:
        return f"Waiter({self.key}, {self.state.name})"

    @property
    def is_evaluated(self) -> bool:
        return self.state not in (WaiterState.JOINING, WaiterState.REJOINING)
