"""Observes what the updates of a store committed, at the instant at which the engine made it durable.

`ObservedStore` remembers the last run of the step of each update. The model engine takes this `Update` along with the
write, and reports it when the write takes effect, even if its node never learns of that.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Final

from volcano_locks_server.ports.lock_store import LockStore, RecordKey, Records, Step, StepResult
from volcano_locks_server.rules.lease import LockRecord


class Update:
    """One update of one node: what its last step saw and wrote, at `now_ms` of the store's clock."""

    __slots__ = ("before", "changed", "node", "now_ms")

    def __init__(self, node: str) -> None:
        self.node: Final = node
        self.before: Records = {}
        self.changed: Mapping[RecordKey, LockRecord] = {}
        self.now_ms = 0


OnCommit = Callable[[Update], None]
_current: ContextVar[Update | None] = ContextVar("current_update", default=None)


def current_update() -> Update | None:
    """The update in whose call this code runs."""
    return _current.get()


class ObservedStore:
    """The store `inner` of one node."""

    def __init__(self, inner: LockStore, node: str) -> None:
        self._node: Final = node
        self._inner: Final = inner
        self.list_locks: Final = inner.list_locks
        self.count_held: Final = inner.count_held
        self.purge: Final = inner.purge
        self.history_page: Final = inner.history_page
        self.purge_history: Final = inner.purge_history
        self.ready: Final = inner.ready
        self.takeover_hold: Final = inner.takeover_hold

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        update = Update(self._node)

        def observed(records: Records, now_ms: int) -> StepResult:
            stepped = step(records, now_ms)
            update.before, update.changed, update.now_ms = records, stepped.changed, now_ms
            return stepped

        token = _current.set(update)
        try:
            return await self._inner.update(keys, observed)
        finally:
            _current.reset(token)
