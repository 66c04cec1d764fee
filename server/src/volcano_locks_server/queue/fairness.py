"""Fairness between nodes: counts this node's grants in a row, and pauses while the lock is left to another node.

`node_turn` decides whose turn it is. A pause lasts until the other node has taken the lock. If the record names that
node, it ends after TURN_MS at the latest, which is longer than any node takes to recheck; the node is then skipped,
because it is gone or has no waiters left. If only messages report waiters elsewhere, it ends after YIELD_MS.
"""

import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from ..ports.clock import Clock
from ..ports.lock_store import RecordKey
from .node_turn import ANY_PEER, NodeTurn
from .wait_queue import WaitQueue

YIELD_MS: Final = 100
TURN_MS: Final = 2_500
LOCKS_MAX: Final = 10_000  # locks with a count; beyond them the oldest count is dropped


class _InARow(NamedTuple):
    """Consecutive grants to this node's waiters, and the fencing token of the last."""

    grants: int
    fencing_token: int


class Fairness:
    """`recheck` is called with a lock when its pause ends."""

    def __init__(self, clock: Clock, recheck: Callable[[RecordKey], None]) -> None:
        self.others_wait: Callable[[RecordKey], bool] = lambda _key: False
        """Whether peer messages report that requests wait for that lock on other nodes."""
        self.node: Final = secrets.token_hex(6)
        """This node's name in records."""
        self._clock: Final = clock
        self._recheck: Final = recheck
        self._in_a_row: Final[dict[RecordKey, _InARow]] = {}

    def turn(self, key: RecordKey, queue: WaitQueue) -> NodeTurn:
        """This node's turn at that lock, for a batch that begins now."""
        in_a_row = self._in_a_row.get(key, _InARow(0, 0))
        overtaken_after, queue.overtaken_after = queue.overtaken_after, None
        return NodeTurn(self.node, *in_a_row, self.others_wait(key), queue.skipped, overtaken_after)

    def note_grants(self, key: RecordKey, turn: NodeTurn) -> None:
        """Keep the count of a turn in which this node granted the lock."""
        self._in_a_row.pop(key, None)
        self._in_a_row[key] = _InARow(turn.grants, turn.fencing_token)
        if len(self._in_a_row) > LOCKS_MAX:
            del self._in_a_row[next(iter(self._in_a_row))]

    def pause(self, key: RecordKey, queue: WaitQueue, node: str) -> None:
        """The lock is free and left to `node`. Does nothing if it is already."""
        if queue.yields_to == node:
            return
        self.end_pause(queue)
        queue.yields_to = node
        pause_ms = YIELD_MS if node == ANY_PEER else TURN_MS
        queue.pause_timer = self._clock.call_in(pause_ms, lambda: self._resume(key, queue, node))

    def end_pause(self, queue: WaitQueue) -> None:
        """The lock was taken."""
        if queue.pause_timer is not None:
            queue.pause_timer.cancel()
            queue.pause_timer = queue.yields_to = None

    def _resume(self, key: RecordKey, queue: WaitQueue, node: str) -> None:
        queue.pause_timer = queue.yields_to = None
        if node == ANY_PEER:
            self._in_a_row.pop(key, None)
        else:
            queue.skipped |= {node}
        self._recheck(key)
