"""The target of the Python client for threads. Blocks are entered and left on the calling thread."""

import contextvars
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, cast

from volcano_locks import AsyncLockGuard, Client, LockGuard, VolcanoError
from volcano_locks.features.watch import Leadership
from volcano_locks.protocol.lock_view import LockView, StateFilter
from volcano_locks.sync.block import LockBlock

from .arguments import actor_and_key, racer_tokens
from .python_client import (
    POLL_SECONDS,
    REAL_SECONDS_MAX,
    Backend,
    BodyCancelled,
    BodyError,
    Campaign,
    PythonClientTarget,
    block_options,
    guard_result,
    lease_result,
)
from .results import failure, race_result
from .target import Result


class PythonSyncTarget(PythonClientTarget):
    """One `Client` per actor."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._clients: Final[dict[str, Client]] = {}
        self._blocks: Final[dict[tuple[str, str], tuple[LockBlock, LockGuard]]] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._backend.close()

    def _client(self, actor: str) -> Client:
        if actor not in self._clients:
            self._clients[actor] = Client(
                self._backend.url,
                self._backend.service_key,
                holder=actor,
                clock=self._clock,
                transport=self._transport(actor),
            )
        return self._clients[actor]

    def _call(self, actor: str, name: str, *args: object, **options: object) -> object:
        return getattr(self._client(actor).locks, name)(*args, **options)

    def _start_call(self, actor: str, name: str, *args: object, **options: object) -> Future[Any]:
        return self._in_thread(lambda: self._call(actor, name, *args, **options))

    def _in_thread(self, work: Callable[[], object]) -> Future[Any]:
        over: Future[Any] = Future()

        def act() -> None:
            try:
                over.set_result(work())
            except BaseException as error:
                over.set_exception(error)

        with self._clock.tracking(over):
            begin = contextvars.copy_context().run
        threading.Thread(target=begin, args=(act,), name="wait", daemon=True).start()
        return over

    def _cancel(self, actor: str, over: Future[Any]) -> None:
        """Closing the client interrupts its waiting thread. The actor's next call gets a new client."""
        self._clients.pop(actor).close()
        self._transports.pop(actor)
        over.exception(REAL_SECONDS_MAX)

    def _views(self, actor: str, prefix: str, state: str) -> list[LockView]:
        return list(self._client(actor).locks.list(prefix, state=cast(StateFilter, state)))

    def _start_watch(self, actor: str, key: str, seen: list[Leadership]) -> Future[Any]:
        def follow() -> None:
            for change in self._client(actor).locks.watch(key):
                seen.append(change)

        return self._in_thread(follow)

    def _start_campaign(self, actor: str, key: str, ttl_seconds: int, campaign: Campaign) -> Future[Any]:
        def run(guard: LockGuard) -> str | None:
            campaign.begin(guard)
            try:
                while not campaign.ending.done() and not guard.lost and not campaign.stop.wait(POLL_SECONDS):
                    pass
                return campaign.end() if campaign.ending.done() else None
            finally:
                campaign.ends += 1

        return self._in_thread(lambda: self._client(actor).locks.lead(key, run, ttl=ttl_seconds, stop=campaign.stop))

    def _stop(self, campaign: Campaign) -> None:
        campaign.stop.set()

    def _start_exclusive_call(
        self, actor: str, key: str, run: Callable[[LockGuard | AsyncLockGuard], None], options: dict[str, Any]
    ) -> Future[Any]:
        @self._client(actor).locks.exclusive("{key}", **options)
        def function(key: str, guard: LockGuard | None = None) -> None:  # noqa: ARG001 - it is for the template
            assert guard is not None
            run(guard)

        return self._in_thread(lambda: function(key))

    def _race(self, args: Mapping[str, object]) -> Result:
        locks = self._client("racers").locks

        def acquire(token: str) -> Result:
            try:
                return lease_result(locks.acquire(str(args["key"]), ttl=int(str(args["ttl_seconds"])), token=token))
            except VolcanoError as error:
                return failure(str(error.code))

        with ThreadPoolExecutor(len(racer_tokens(args))) as threads:
            return race_result(list(threads.map(acquire, racer_tokens(args))))

    def _start_block(self, args: Mapping[str, object]) -> Future[Any]:
        locks = self._client(str(args["actor"])).locks
        block = locks.with_lock(str(args["key"]), **block_options(args))

        def enter() -> LockGuard:
            guard = block.__enter__()
            self._blocks[actor_and_key(args)] = block, guard
            return guard

        if args.get("wait_seconds"):
            return self._in_thread(enter)
        entered: Future[Any] = Future()
        entered.set_result(enter())
        return entered

    def _start_nested_blocks(self, args: Mapping[str, object]) -> Future[Any]:
        locks, key = self._client(str(args["actor"])).locks, str(args["key"])

        def enter_inner() -> Result:
            with locks.with_lock(key, **block_options(args)):
                return {}

        def run() -> Result:
            with locks.with_lock(key, ttl=int(str(args["ttl_seconds"]))) as guard:
                return {**self._result_of(enter_inner), "lost": guard.lost}

        return self._in_thread(run)

    def _guard(self, args: Mapping[str, object]) -> Result:
        return guard_result(self._blocks[actor_and_key(args)][1])

    def _leave_block(self, args: Mapping[str, object]) -> None:
        block, _guard = self._blocks[actor_and_key(args)]
        match args.get("body", "returns"):
            case "raises":
                error: BaseException | None = BodyError("the body's own error")
            case "cancelled":
                error = BodyCancelled()
            case _:
                error = None
        block.__exit__(None if error is None else type(error), error, None)
        if error is not None:
            raise error
