"""The target of the asyncio Python client. All clients run in one event loop, each call and each block in one task."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from math import inf
from typing import Any, Final

from volcano_locks import AsyncClient, AsyncLockGuard, LockGuard, VolcanoError
from volcano_locks.asyncio.waiting import LoopWakeup, sleep
from volcano_locks.features.watch import Leadership

from .loop_thread import LoopThread
from .python_backends import Backend
from .python_bodies import Body, Campaign, end_body
from .python_client import PythonClientTarget, block_options
from .python_lease_verbs import REAL_SECONDS_MAX
from .python_results import failure_result
from .results import hold_text
from .target import Result


class _BlockTask:
    """A block in its own task."""

    def __init__(self, target: "PythonAsyncTarget", locks: Any, args: Mapping[str, object]) -> None:
        self.stopped = False
        self.entered: Final[Future[AsyncLockGuard]] = Future()
        self._target: Final = target
        self._how = ""
        self._finished: LoopWakeup | None = None
        self.over: Final[Future[Any]] = target.start(lambda: self._run(locks, args))

    def finish(self, how: str) -> None:
        """End the body, if a loss has not ended it."""
        self._how = how
        if how == "cancelled":
            self._target.cancel(self.over)
        elif self._finished is not None:
            self._finished.set()

    async def _run(self, locks: Any, args: Mapping[str, object]) -> None:
        try:
            async with locks.with_lock(str(args["key"]), **block_options(args)) as guard:
                self._finished = LoopWakeup()
                self.entered.set_result(guard)
                try:
                    await sleep(self._target.client_clock, inf, self._finished)
                except asyncio.CancelledError:
                    self.stopped = True
                    raise
                end_body(self._how)
        except BaseException as error:
            if not self.entered.done():
                self.entered.set_exception(error)
            raise


class PythonAsyncTarget(PythonClientTarget):
    """One `AsyncClient` per actor."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._loop: Final = LoopThread("clients")
        self._clients: Final[dict[str, AsyncClient]] = {}
        self._tasks: Final[dict[Future[Any], asyncio.Task[Any]]] = {}
        self.client_clock: Final = backend.clock

    def close(self) -> None:
        for client in self._clients.values():
            self._loop.run(client.close())
        for over in self._tasks:
            if not over.done():
                self.cancel(over)
                over.exception(REAL_SECONDS_MAX)
        self._loop.close()
        self._backend.close()

    def start(self, work: Callable[[], Any]) -> Future[Any]:
        """Run the coroutine that `work` returns, in a task that the clock watches."""
        over: Future[Any] = Future()

        async def run() -> None:
            try:
                result = await work()
            except asyncio.CancelledError:
                over.set_exception(VolcanoError("cancelled from outside", code="cancelled"))
            except BaseException as error:
                over.set_exception(error)
            else:
                over.set_result(result)

        async def begin() -> None:
            task = self._tasks[over] = asyncio.create_task(run())
            self._clock.watch(task, over.done)

        self._loop.run(begin())
        return over

    def cancel(self, over: Future[Any]) -> None:
        """Cancel the task of what was started, and let it see that."""

        async def cancel() -> None:
            self._tasks[over].cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        self._loop.run(cancel())

    def _start(self, work: Callable[[], Any]) -> Future[Any]:
        return self.start(work)

    def _locks(self, actor: str) -> Any:
        if actor not in self._clients:
            options = self._backend.client_options(actor)
            self._clients[actor] = AsyncClient(**options, holder=actor, clock=self._clock)
        return self._clients[actor].locks

    def _cancel(self, actor: str, over: Future[Any]) -> None:  # noqa: ARG002
        self.cancel(over)
        over.exception(REAL_SECONDS_MAX)

    def _keys(self, actor: str, prefix: str, state: str) -> Future[Any]:
        async def keys() -> list[str]:
            return [view.key async for view in self._locks(actor).list(prefix, state=state)]

        return self.start(keys)

    def _holds(self, actor: str, key: str) -> Future[Any]:
        async def holds() -> list[str]:
            return [hold_text(hold.holder, hold.ended) async for hold in self._locks(actor).history(key)]

        return self.start(holds)

    def _start_block(self, args: Mapping[str, object]) -> Body:
        return _BlockTask(self, self._locks(str(args["actor"])), args)

    def _start_nested_blocks(self, args: Mapping[str, object]) -> Future[Any]:
        async def run() -> Result:
            locks, key = self._locks(str(args["actor"])), str(args["key"])
            async with locks.with_lock(key, ttl=int(str(args["ttl_seconds"]))) as guard:
                try:
                    async with locks.with_lock(key, **block_options(args)):
                        return {"lost": guard.lost}
                except VolcanoError as error:
                    return {**failure_result(error), "lost": guard.lost}

        return self.start(run)

    def _start_watch(self, actor: str, key: str, seen: list[Leadership]) -> Future[Any]:
        async def follow() -> None:
            async for change in self._locks(actor).watch(key):
                seen.append(change)

        return self.start(follow)

    def _start_campaign(self, actor: str, key: str, ttl_seconds: int, campaign: Campaign) -> Future[Any]:
        async def run(guard: AsyncLockGuard) -> str | None:
            wakeup = LoopWakeup()
            campaign.begin(guard, wakeup)
            try:
                await sleep(self._clock, inf, wakeup)
                return campaign.result()
            finally:
                campaign.ends += 1

        return self.start(lambda: self._locks(actor).lead(key, run, ttl=ttl_seconds))

    def _stop(self, campaign: Campaign) -> None:
        self.cancel(campaign.over)

    def _start_exclusive_call(
        self, actor: str, key: str, run: Callable[[LockGuard | AsyncLockGuard], None], options: dict[str, Any]
    ) -> Future[Any]:
        @self._locks(actor).exclusive("{key}", **options)  # type: ignore[untyped-decorator]
        async def function(key: str, guard: AsyncLockGuard | None = None) -> None:  # noqa: ARG001 - it is for the template
            assert guard is not None
            run(guard)

        return self.start(lambda: function(key))
