"""The target of the asyncio Python client. Each block runs in a task whose body waits until the scenario ends it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from math import inf
from typing import Any, Final, TypeVar, cast

from volcano_locks import AsyncClient, AsyncLockGuard, LockGuard, VolcanoError
from volcano_locks.features.watch import Leadership
from volcano_locks.protocol.lock_view import LockView, StateFilter

from .arguments import actor_and_key, racer_tokens
from .loop_thread import LoopThread
from .python_client import (
    Backend,
    BodyError,
    Campaign,
    PythonClientTarget,
    block_options,
    failure_result,
    guard_result,
    lease_result,
)
from .results import failure, race_result
from .target import Result

POLL_SECONDS: Final = 0.01
POLLS_MAX: Final = 3_000

T = TypeVar("T")


class _BlockTask:
    """A block in its own task. Created and used in the event loop."""

    def __init__(self, client: AsyncClient, args: Mapping[str, object]) -> None:
        self._ending: Final[asyncio.Future[str]] = asyncio.get_running_loop().create_future()
        self._entered: Final[asyncio.Future[AsyncLockGuard]] = asyncio.get_running_loop().create_future()
        self._task: Final = asyncio.create_task(self._run(client, args))
        self.stopped = False

    async def enter(self) -> AsyncLockGuard:
        either: list[asyncio.Future[Any]] = [self._entered, self._task]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._entered.done():
            await self._task
        return self._entered.result()

    async def leave(self, how: str) -> None:
        """End the body if a loss has not ended it, and raise what the block raises."""
        if how == "cancelled":
            self._task.cancel()
        elif not self._ending.done():
            self._ending.set_result(how)
        await asyncio.wait([self._task])
        if self._task.cancelled():
            raise VolcanoError("the block was cancelled from outside", code="cancelled")
        self._task.result()

    async def _run(self, client: AsyncClient, args: Mapping[str, object]) -> None:
        async with client.locks.with_lock(str(args["key"]), **block_options(args)) as guard:
            self._entered.set_result(guard)
            try:
                how = await self._ending
            except asyncio.CancelledError:
                self.stopped = True
                raise
            if how == "raises":
                raise BodyError("the body's own error")


class PythonAsyncTarget(PythonClientTarget):
    """One `AsyncClient` per actor, all in one event loop in another thread than the scenario's."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._loop: Final = LoopThread("clients")
        self._clients: Final[dict[str, AsyncClient]] = {}
        self._blocks: Final[dict[tuple[str, str], tuple[_BlockTask, AsyncLockGuard]]] = {}
        self._tasks: Final[dict[Future[Any], asyncio.Task[Any]]] = {}

    def close(self) -> None:
        for client in self._clients.values():
            self._loop.run(client.close())
        self._loop.close()
        self._backend.close()

    def _client(self, actor: str) -> AsyncClient:
        if actor not in self._clients:
            self._clients[actor] = AsyncClient(
                self._backend.url,
                self._backend.service_key,
                holder=actor,
                clock=self._clock,
                transport=self._transport(actor),
            )
        return self._clients[actor]

    def _call(self, actor: str, name: str, *args: object, **options: object) -> object:
        return self._in_loop(lambda: getattr(self._client(actor).locks, name)(*args, **options))

    def _start_call(self, actor: str, name: str, *args: object, **options: object) -> Future[Any]:
        return self._in_task(lambda: getattr(self._client(actor).locks, name)(*args, **options))

    def _in_task(self, work: Callable[[], Awaitable[object]]) -> Future[Any]:
        over: Future[Any] = Future()

        async def act() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks[over] = task
            try:
                over.set_result(await work())
            except asyncio.CancelledError:
                over.set_exception(VolcanoError("the wait was cancelled from outside", code="cancelled"))
            except BaseException as error:
                over.set_exception(error)

        with self._clock.tracking(over):
            self._loop.begin(act())
        return over

    def _cancel(self, _actor: str, over: Future[Any]) -> None:
        async def cancel() -> None:
            self._tasks[over].cancel()
            await asyncio.wait([self._tasks[over]])

        self._loop.run(cancel())

    def _views(self, actor: str, prefix: str, state: str) -> list[LockView]:
        async def listed() -> list[LockView]:
            return [view async for view in self._client(actor).locks.list(prefix, state=cast(StateFilter, state))]

        return self._in_loop(listed)

    def _start_watch(self, actor: str, key: str, seen: list[Leadership]) -> Future[Any]:
        async def follow() -> None:
            async for change in self._client(actor).locks.watch(key):
                seen.append(change)

        return self._in_task(follow)

    def _start_campaign(self, actor: str, key: str, ttl_seconds: int, campaign: Campaign) -> Future[Any]:
        async def run(guard: AsyncLockGuard) -> str:
            campaign.begin(guard)
            try:
                await asyncio.wait([asyncio.wrap_future(campaign.ending)])
                return campaign.end()
            finally:
                campaign.ends += 1

        return self._in_task(lambda: self._client(actor).locks.lead(key, run, ttl=ttl_seconds))

    def _stop(self, campaign: Campaign) -> None:
        self._loop.loop.call_soon_threadsafe(self._tasks[campaign.over].cancel)

    def _start_exclusive_call(
        self, actor: str, key: str, run: Callable[[LockGuard | AsyncLockGuard], None], options: dict[str, Any]
    ) -> Future[Any]:
        @self._client(actor).locks.exclusive("{key}", **options)
        async def function(key: str, guard: AsyncLockGuard | None = None) -> None:  # noqa: ARG001 - it is for the template
            assert guard is not None
            run(guard)

        return self._in_task(lambda: function(key))

    def _race(self, args: Mapping[str, object]) -> Result:
        locks = self._client("racers").locks

        async def acquire(token: str) -> Result:
            try:
                return lease_result(
                    await locks.acquire(str(args["key"]), ttl=int(str(args["ttl_seconds"])), token=token)
                )
            except VolcanoError as error:
                return failure(str(error.code))

        return race_result(list(self._in_loop(lambda: asyncio.gather(*(acquire(one) for one in racer_tokens(args))))))

    def _start_block(self, args: Mapping[str, object]) -> Future[Any]:
        async def enter() -> AsyncLockGuard:
            block = _BlockTask(self._client(str(args["actor"])), args)
            guard = await block.enter()
            self._blocks[actor_and_key(args)] = block, guard
            return guard

        return self._in_task(enter) if args.get("wait_seconds") else self._loop.begin(enter())

    def _start_nested_blocks(self, args: Mapping[str, object]) -> Future[Any]:
        async def run() -> Result:
            locks, key = self._client(str(args["actor"])).locks, str(args["key"])
            async with locks.with_lock(key, ttl=int(str(args["ttl_seconds"]))) as guard:
                try:
                    async with locks.with_lock(key, **block_options(args)):
                        return {"lost": guard.lost}
                except VolcanoError as error:
                    return {**failure_result(error), "lost": guard.lost}

        return self._in_task(run)

    def _guard(self, args: Mapping[str, object]) -> Result:
        block, guard = self._blocks[actor_and_key(args)]
        return {**guard_result(guard), "stopped": block.stopped}

    def _leave_block(self, args: Mapping[str, object]) -> None:
        """Leave the block. The clock must advance meanwhile if a stopped body's release hangs."""
        block, _guard = self._blocks[actor_and_key(args)]
        transport = self._transport(str(args["actor"]))
        leaving = self._loop.begin(block.leave(str(args.get("body", "returns"))))
        for _ in range(POLLS_MAX):
            if wait([leaving], POLL_SECONDS).done:
                break
            if transport.waiting and (due := self._clock.next_due()) < inf:
                self._clock.jump(due - self._clock.now())
        leaving.result(0)

    def _in_loop(self, work: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await work()

        return self._loop.run(run())
