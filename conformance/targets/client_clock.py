"""The clock of a target's Python clients: it moves the server's clock along.

Each move stops at the next instant for which a client or the server waits. It continues when nothing is on its way:
each thread or task of the clients waits on this clock or has an open request that is at rest, and no alarm has fired
that the client has not handled.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from typing import Any, Final

from volcano_locks.clock import Wakeup
from volcano_locks.testing import ManualClock

from ..fault_proxy import FaultProxy


class ClientClock(ManualClock):
    """The clock of one target. The proxy is None if its clients use a fake."""

    def __init__(self, proxy: FaultProxy | None = None) -> None:
        super().__init__(on_move=None if proxy is None else proxy.follow)
        self._proxy: Final = proxy
        self._guard: Final = threading.Lock()
        self._activities: Final[dict[object, Callable[[], bool]]] = {}
        self._set_alarms: Final[dict[object, tuple[float, Wakeup]]] = {}
        self._exchanged = 0
        self._server_due = inf

    def watch(self, renewer: object, ended: Callable[[], bool]) -> None:
        with self._guard:
            self._activities[renewer] = ended

    def alarm(self, until: float, wakeup: Wakeup, *, asleep: bool = False) -> Callable[[], None]:
        cancel = super().alarm(until, wakeup, asleep=asleep)
        key = object()
        with self._guard:
            self._set_alarms[key] = until, wakeup

        def cancel_and_forget() -> None:
            cancel()
            with self._guard:
                self._set_alarms.pop(key, None)

        return cancel_and_forget

    def next_due(self) -> float:
        return min(super().next_due(), self._server_due if self._server_due > self.now() else inf)

    def is_settled(self) -> bool:
        before = self._busy_count()
        if self._alarm_has_fired():
            return False
        if self._proxy is None:
            return before == 0
        state = self._proxy.state()
        unchanged, self._exchanged = state.exchanged == self._exchanged, state.exchanged
        self._server_due = inf if state.next_due_seconds is None else self.now() + state.next_due_seconds
        return unchanged and state.at_rest and before == state.open_requests == self._busy_count()

    def advance_until(self, over: "Future[Any]") -> None:
        """Advance the clock until `over` is done."""
        due = self.settle()
        while not over.done():
            assert due < inf, "the awaited work is not over, and no alarm is due"
            self.jump(due - self.now())
            due = self.settle()

    def due_if_settled(self) -> float | None:
        # Not under the mutex of the clock, because `is_settled` asks the proxy. A thread that rechecks the time has no
        # alarm for that moment, so the clients' next instant is read twice.
        clients_due = super().next_due()
        return self.next_due() if self.is_settled() and super().next_due() == clients_due else None

    def _alarm_has_fired(self) -> bool:
        with self._guard:
            alarms = list(self._set_alarms.values())
        return any(until <= self.now() or wakeup.is_set() for until, wakeup in alarms)

    def _busy_count(self) -> int:
        """The number of threads and tasks that have not ended and do not wait on the clock."""
        with self._guard:
            for activity in [one for one, ended in self._activities.items() if ended()]:
                del self._activities[activity]
            activities = list(self._activities)
        return sum(not self.sleeps(one) for one in activities)
