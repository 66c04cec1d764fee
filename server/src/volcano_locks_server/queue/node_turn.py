"""Whose turn a free lock is: the pure rule of fairness between nodes (WAIT-10, WAIT-12).

Nodes keep the turns in the lock's record, so that fairness needs no message. A node whose waiters were overtaken
appends itself to `waiting_nodes`. The node that has the turn grants the lock to its own waiters at most
HANDOFFS_IN_A_ROW_MAX times in a row. Then it leaves it to the first of these nodes, and appends itself if it has
waiters left. Peer messages only make this
faster: a node that learns of waiters elsewhere yields before a peer is in the record.
"""

from typing import Final, NamedTuple

from msgspec.structs import replace

from ..rules.lease import EMPTY_QUEUE_STATE, Held, LockRecord

HANDOFFS_IN_A_ROW_MAX: Final = 8
WAITING_NODES_MAX: Final = 16
ANY_PEER: Final = ""


class NodeTurn(NamedTuple):
    """What a node knows of its turn at a lock.

    `grants` counts consecutive grants to its waiters, up to the lease of `fencing_token`. `others_wait`: peer messages
    report waiters. `skipped`: waiting nodes that left their turn unused. `overtaken_after`: in a timed recheck, the
    fencing token that blocked its waiters at the recheck before; otherwise None.
    """

    node: str
    grants: int = 0
    fencing_token: int = 0
    others_wait: bool = False
    skipped: frozenset[str] = frozenset()
    overtaken_after: int | None = None


def yields_to(turn: NodeTurn, record: LockRecord | None) -> str | None:
    """The node that a free lock is left to, ANY_PEER if it is not known; None if this node may grant it."""
    in_a_row = _grants_in_a_row(turn, record)
    first = next((node for node in waiting_nodes(record) if node not in turn.skipped), None)
    if first is None:
        return ANY_PEER if turn.others_wait and in_a_row >= HANDOFFS_IN_A_ROW_MAX else None
    return None if first == turn.node or 0 < in_a_row < HANDOFFS_IN_A_ROW_MAX else first


def after_grant(turn: NodeTurn, before: LockRecord | None, lease: Held) -> tuple[NodeTurn, Held]:
    """The turn and the record after a grant to a waiter of this node."""
    grants = _grants_in_a_row(turn, before) + 1
    left = tuple(node for node in waiting_nodes(lease) if node != turn.node and node not in turn.skipped)
    state = replace(lease.queue_state or EMPTY_QUEUE_STATE, waited=True, waiting_nodes=left)
    granted = turn._replace(grants=grants, fencing_token=lease.fencing_token, skipped=frozenset())
    return granted, replace(lease, queue_state=state)


def with_overtaken_node(turn: NodeTurn, lease: Held) -> LockRecord:
    """The record of the lease that blocks this node's waiters; it lists the node if another lease blocked them at the
    recheck before.
    """
    is_overtaken = turn.overtaken_after not in (None, lease.fencing_token) and lease.fencing_token != turn.fencing_token
    return with_node(turn.node, lease) if is_overtaken else lease


def with_node(node: str, record: LockRecord) -> LockRecord:
    """The record, in which this node waits for its turn."""
    nodes = waiting_nodes(record)
    if node in nodes or len(nodes) >= WAITING_NODES_MAX:
        return record
    state = replace(record.queue_state or EMPTY_QUEUE_STATE, waiting_nodes=(*nodes, node))
    return replace(record, queue_state=state)


def waiting_nodes(record: LockRecord | None) -> tuple[str, ...]:
    """The nodes whose waiters were overtaken, in the order of their turns."""
    return () if record is None or record.queue_state is None else record.queue_state.waiting_nodes


def _grants_in_a_row(turn: NodeTurn, record: LockRecord | None) -> int:
    return turn.grants if record is not None and record.fencing_token == turn.fencing_token else 0
