"""The target of the Python client for threads. Each call runs in its own thread, each block in one thread."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from math import inf
from typing import Any, Final

from volcano_locks import AsyncLockGuard, Client, LockGuard
from volcano_locks.features.watch import Leadership
from volcano_locks.sync.call import Signal, sleep

from .client_clock import ClientClock
from .python_backends import Backend
from .python_bodies import Body, Campaign, end_body
from .python_client import PythonClientTarget, block_options
from .python_lease_verbs import REAL_SECONDS_MAX
from .results import hold_text
from .target import Result


class _BlockThread:
    """A block in its own thread."""

    stopped = False

    def __init__(self, target: "PythonSyncTarget", locks: Any, args: Mapping[str, object]) -> None:
        self.entered: Final[Future[LockGuard]] = Future()
        self._clock: Final = target.client_clock
        self._finished: Final = Signal()
        self._how = ""
        self.over: Final[Future[Any]] = target.start(lambda: self._run(locks, args))

    def finish(self, how: str) -> None:
        self._how = how
        self._finished.set()

    def _run(self, locks: Any, args: Mapping[str, object]) -> None:
        try:
            with locks.with_lock(str(args["key"]), **block_options(args)) as guard:
                self.entered.set_result(guard)
                sleep(self._clock, inf, self._finished)
                end_body(self._how)
        except BaseException as error:
            if not self.entered.done():
                self.entered.set_exception(error)
            raise


class PythonSyncTarget(PythonClientTarget):
    """One `Client` per actor."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._clients: Final[dict[str, Client]] = {}

    @property
    def client_clock(self) -> ClientClock:
        return self._clock

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        for campaign in self._campaigns.values():
            self._stop(campaign)
        for block in self._blocks.values():
            block.finish("returns")
        overs = [block.over for block in self._blocks.values()] + [one.over for one in self._campaigns.values()]
        for over in overs:
            over.exception(REAL_SECONDS_MAX)
        self._backend.close()

    def start(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` in a thread that the clock watches."""
        over: Future[Any] = Future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                over.set_exception(error)
            else:
                over.set_result(result)

        thread = threading.Thread(target=run, name="actor", daemon=True)
        thread.start()
        assert thread.ident is not None
        self._clock.watch(thread.ident, over.done)
        return over

    def _start(self, work: Callable[[], Any]) -> Future[Any]:
        return self.start(work)

    def _locks(self, actor: str) -> Any:
        if actor not in self._clients:
            options = self._backend.client_options(actor)
            self._clients[actor] = Client(**options, holder=actor, clock=self._clock)
        return self._clients[actor].locks

    def _cancel(self, actor: str, over: Future[Any]) -> None:
        """Closing the client interrupts its waiting thread. The actor's next call gets a new client."""
        self._clients.pop(actor).close()
        over.exception(REAL_SECONDS_MAX)

    def _keys(self, actor: str, prefix: str, state: str) -> Future[Any]:
        return self.start(lambda: [view.key for view in self._locks(actor).list(prefix, state=state)])

    def _holds(self, actor: str, key: str) -> Future[Any]:
        return self.start(lambda: [hold_text(hold.holder, hold.ended) for hold in self._locks(actor).history(key)])

    def _start_block(self, args: Mapping[str, object]) -> Body:
        return _BlockThread(self, self._locks(str(args["actor"])), args)

    def _start_nested_blocks(self, args: Mapping[str, object]) -> Future[Any]:
        locks, key = self._locks(str(args["actor"])), str(args["key"])

        def enter_inner() -> Result:
            with locks.with_lock(key, **block_options(args)):
                return {}

        def run() -> Result:
            with locks.with_lock(key, ttl=int(str(args["ttl_seconds"]))) as guard:
                return {**self._result_of(enter_inner), "lost": guard.lost}

        return self.start(run)

    def _start_watch(self, actor: str, key: str, seen: list[Leadership]) -> Future[Any]:
        def follow() -> None:
            for change in self._locks(actor).watch(key):
                seen.append(change)

        return self.start(follow)

    def _start_campaign(self, actor: str, key: str, ttl_seconds: int, campaign: Campaign) -> Future[Any]:
        def run(guard: LockGuard) -> str | None:
            wakeup = Signal()
            campaign.begin(guard, wakeup)
            try:
                self.start(lambda: self._wake_at_loss(guard, wakeup))
                sleep(self._clock, inf, wakeup)
                return campaign.result()
            finally:
                campaign.ends += 1

        return self.start(lambda: self._locks(actor).lead(key, run, ttl=ttl_seconds, stop=campaign.stop))

    def _wake_at_loss(self, guard: LockGuard, wakeup: Signal) -> None:
        if guard.wait_lost():
            wakeup.set()

    def _stop(self, campaign: Campaign) -> None:
        campaign.stop.set()
        campaign.finish("cancelled")

    def _start_exclusive_call(
        self, actor: str, key: str, run: Callable[[LockGuard | AsyncLockGuard], None], options: dict[str, Any]
    ) -> Future[Any]:
        @self._locks(actor).exclusive("{key}", **options)  # type: ignore[untyped-decorator]
        def function(key: str, guard: LockGuard | None = None) -> None:  # noqa: ARG001 - it is for the template
            assert guard is not None
            run(guard)

        return self.start(lambda: function(key))
