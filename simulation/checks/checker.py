"""All checks of one run. They observe nodes, engines and clients, and report the first violation to the world."""

from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from math import inf
from typing import Any, Final

from conformance.history.records import RequestRecord

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue.waiter import Waiter
from volcano_locks_server.rules.clock_history import HOLD_MS_MAX
from volcano_locks_server.rules.lease import Damaged, Free, Held, free_in_ms, is_retired, next_fencing_token
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores.etcd.clock_skew import SKEW_MAX_MS

from ..node import Node
from ..plan import Plan
from ..server_request import ServerRequest
from ..stores.observed import Update
from ..world import World
from .commits import Commits
from .history import Histories
from .holders import Holders
from .queues import Queues
from .streams import Streams

SKEW_SECONDS: Final = 10.0  # in this time a node has compared its clock with a peer's
SKEW_TOLERANCE_MS: Final = 1_000  # how far clocks may move apart from one comparison to the next
HOLD_LATE_SECONDS: Final = 60.0  # until a jump is found: at the start of a node, or at its next batch
RESPONSE_SECONDS_MAX: Final = 6.0  # for a request that does not wait, on a node that runs
BACK_SECONDS: Final = 5.0  # after a cut: a call that began in it fails within 4 s, and 1 s later its node tries again


class Checker:
    """`project_of` has the project and the quota (0: none) of each credential.

    If the plan's clocks are beyond the documented bounds, only fencing tokens must rise, and every call must end.
    `excused`, by node: the true time until which the node or its store was disturbed.
    """

    def __init__(self, world: World, project_of: dict[bytes, tuple[str, int]], *, plan: Plan) -> None:
        self.operations = 0
        self.outcomes: Final[Counter[str]] = Counter()
        self.excused: Final[dict[str, float]] = {}
        self.at_next_commit: Final[dict[str, Callable[[], None]]] = {}
        self.streams: Final = Streams(world)
        self._world: Final = world
        self._projects: Final = project_of
        self._operations_max: Final = plan.operations
        self._is_bounded: Final = plan.clocks_are_bounded
        self._single_node: Final = plan.store == "sqlite"
        self._clocks_of_nodes: Final = plan.store == "etcd"
        self._commits: Final = Commits(world)
        self._holders: Final = Holders(world)
        self._queues: Final = Queues(world)
        self._histories: Final = Histories(world, plan)
        self._hold_until = 0.0
        self._free_since: Final[dict[RecordKey, float]] = {}
        self._held_by: Final[dict[RecordKey, tuple[bytes, float]]] = {}
        self._served: Final[Counter[tuple[str, str, int]]] = Counter()
        self._nodes: Final[dict[Node, None]] = {}
        self._committed_at: Final[dict[str, float]] = {}
        self._cut_until: Final[dict[str, float]] = {}

    # --- clients ---

    def believes(self, client: str, key: str, token: int, is_held: Callable[[], bool]) -> None:
        if self._is_bounded:
            self._holders.believes(client, key, token, is_held)

    def request_sent(self, record: RequestRecord) -> int:
        """The record says that its outcome is unknown. Returns the number of the request."""
        if record.operation == "force_release":
            self._holders.force_release_sent(record.key)
        return self._histories.sent(record)

    def request_ended(self, number: int, record: RequestRecord, *, was_sent: bool) -> None:
        """A request that no node received is no checked operation."""
        self.operations += was_sent
        if self.operations >= self._operations_max:
            self._world.is_over = True
        self.outcomes[f"{record.operation} {record.outcome}"] += 1
        self._histories.ended(number, record)

    def believers(self) -> set[str]:
        """The clients that believe in a lease now."""
        return self._holders.believers()

    def call_is_late(self, client: str, seconds: float) -> None:
        self._world.violate("call_without_end", f"a call of {client} has not ended after {seconds:.0f} s")

    # --- nodes ---

    def arrived(self, node: Node, request: ServerRequest) -> None:
        self._nodes[node] = None
        if request.method == "POST":
            key = RecordKey(self._project(request), LockKey(request.target.split("/")[2]))
            token = request.fields[b"x-volcano-lock-token"]
            self._queues.arrived(node.name, key, sha256(token.lower()).digest())

    def disconnected(self, node: Node, request: ServerRequest) -> None:
        if request.method == "POST":
            key = RecordKey(self._project(request), LockKey(request.target.split("/")[2]))
            token = request.fields[b"x-volcano-lock-token"]
            self._queues.disconnected(node.name, key, sha256(token.lower()).digest())

    def joined(self, node: Node, key: RecordKey, waiter: Waiter) -> None:
        self._queues.joined(node.name, key, waiter)

    def responded(self, node: Node, request: ServerRequest, response: bytes) -> None:
        status = int(response[9:12])
        project_id, limit = self._projects[request.fields[b"authorization"]]
        if status == 500:
            self._world.violate("internal_error", f"{node.name} answered {status}")
        if limit == 0 or status == 429 or b"x-ratelimit-reset: " not in response:
            return
        reset = int(response.partition(b"x-ratelimit-reset: ")[2].partition(b"\r")[0])
        is_owners = request.method == "PATCH" or (request.method == "DELETE" and request.target.endswith("/lease"))
        of_node = f"{node.name}/{node.run}" if self._single_node else ""
        kinds = ("all",) if is_owners else ("all", "others")
        for kind in kinds:
            self._served[of_node + kind, project_id, reset] += 1
            allowed = 2 * limit if kind == "all" else limit
            if self._served[of_node + kind, project_id, reset] > allowed:
                self._world.violate("quota", f"more than {allowed} requests of a project were served in one minute")

    def process_ended(self, node: Node) -> None:
        self._queues.process_ended(node.name)
        self.streams.process_ended(node.name)

    def failed(self, node: Node, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._world.violate("exception", f"{node.name}: {context['message']}: {error!r}")

    # --- engines ---

    def committed(self, update: Update) -> None:
        """The engine has made an update durable; its node does not know that yet."""
        if update.node in self.at_next_commit:
            self.at_next_commit.pop(update.node)()
        self._committed_at[update.node] = self._world.now
        known = {key: self._commits.last.get(key) for key in update.changed}
        self._commits.committed(update)
        for key, after in update.changed.items():
            before = known[key]
            self._note_record(key, after, update.now_ms)
            before_token = before.fencing_token if before is not None else -1
            if isinstance(after, Held) and (not isinstance(before, Held) or before_token != after.fencing_token):
                if after.fencing_token == _token_of_one(update, key):  # else two began
                    self._lease_began(update, key, after)
                self.streams.lease_changed(update.node, key, (after.fencing_token, 0, 0))
            elif isinstance(after, Free) and isinstance(before, Held):
                self.streams.lease_changed(update.node, key, (before.fencing_token, 1, 0))

    def _lease_began(self, update: Update, key: RecordKey, lease: Held) -> None:
        before = update.before[key]
        if self._clocks_of_nodes:
            self._check_skew(update.node, key)

        def is_known_retired(digest: bytes) -> bool:
            return isinstance(before, Held | Free) and is_retired(before, digest, update.now_ms)

        self._queues.lease_began(update.node, key, lease, is_known_retired, self._takes_turns_since())

    def _check_skew(self, granted_by: str, key: RecordKey) -> None:
        """The nodes' clocks are the time of etcd: one that is behind a serving node's decides nothing (LEASE-1).

        A node whose clock is ahead may be the one that refuses. So a node counts as serving only if it commits.
        """
        calm_since, clocks = self._calm_nodes(), {}
        before = self._world.now - SKEW_SECONDS
        for node in self._nodes:
            is_serving = calm_since.get(node.name, inf) < before < self._committed_at.get(node.name, -inf)
            if node.process is not None and is_serving:
                clocks[node.name] = node.process.clock.now_ms()
        behind_ms = max(clocks.values(), default=0) - clocks.get(granted_by, inf)
        if behind_ms > SKEW_MAX_MS + SKEW_TOLERANCE_MS:
            message = f"{granted_by} granted {key.key} by a clock that is {behind_ms} ms behind that of a serving node"
            self._world.violate("skewed_grant", message, key.key, since=self._world.now - SKEW_SECONDS)

    # --- time ---

    def excuse(self, node: str, seconds: float = 0.0) -> None:
        """The node or its store is disturbed until then: its events may be late, and what it sends may be lost."""
        self.excused[node] = max(self.excused.get(node, 0.0), self._world.now + seconds)

    def store_is_cut(self, node: str, seconds: float) -> None:
        """The node is cut off from its store. Until it has noticed that the store is back, it cannot grant a lock."""
        self._cut_until[node] = self._world.now + seconds + BACK_SECONDS

    def clock_steps(self) -> None:
        """A clock is stepped, or may be found to have jumped at the start of a node: takeovers may be held."""
        self._hold_until = self._world.now + HOLD_MS_MAX / 1_000 + HOLD_LATE_SECONDS

    def tick(self) -> None:
        """To be called about once a second."""
        self.streams.check(self.excused)
        if self._is_bounded:
            self._queues.check(self._held_by, self._calm_nodes(), self._free_for)
        for node in self._nodes:
            process = node.process
            if process is None or node.is_paused:
                continue
            for request in process.requests:
                waits = 61.0 if b"wait_seconds" in request._body else 0.0
                since = max(request.arrived_at, process.loop.paused_until)
                if self._world.now - since > waits + RESPONSE_SECONDS_MAX:
                    self._world.violate(
                        "no_response", f"{node.name} has not answered {request.method} {request.target}"
                    )

    def finish(self) -> None:
        if self._is_bounded:
            self._histories.check_all()

    def _note_record(self, key: RecordKey, after: Held | Free, now_ms: int) -> None:
        """From when on the lock is free, in true time."""
        now = self._world.now
        if isinstance(after, Free):
            self._free_since[key] = now
            self._held_by.pop(key, None)
        else:
            self._free_since[key] = now + free_in_ms(after, now_ms) / 1_000
            if self._held_by.get(key, (b"", 0.0))[0] != after.owner_digest:
                self._held_by[key] = after.owner_digest, now

    def _free_for(self, key: RecordKey) -> float:
        """For how long the lock has been free, by its record, and outside of holds."""
        is_held = key in self._held_by
        since = self._free_since.get(key, self._world.now)
        return self._world.now - (max(since, self._hold_until) if is_held else since)

    def _calm_nodes(self) -> dict[str, float]:
        """Since when each node serves undisturbed, with calls of the store that may take their time."""
        calm = {}
        for node in self._nodes:
            process = node.process
            if process is not None and process.is_serving and not node.is_paused:
                calm[node.name] = max(process.started_at, process.loop.paused_until, self.excused.get(node.name, 0.0))
        return calm

    def _takes_turns_since(self) -> dict[str, float]:
        """The end of each node's latest pause or cut. Empty, if clocks are beyond the bounds: no fairness then."""
        nodes = self._nodes if self._is_bounded else ()
        return {
            node.name: max(node.process.loop.paused_until, self._cut_until.get(node.name, 0.0))
            for node in nodes
            if node.process is not None
        }

    def _project(self, request: ServerRequest) -> str:
        return self._projects[request.fields[b"authorization"]][0]


def _token_of_one(update: Update, key: RecordKey) -> int:
    """The fencing token of the lease that begins in this update, if only one begins."""
    before = update.before[key]
    return -1 if isinstance(before, Damaged) else next_fencing_token(before, update.now_ms)
