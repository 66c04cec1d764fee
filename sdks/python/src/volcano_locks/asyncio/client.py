"""The client for asyncio: the same verbs, awaited; the block's body is cancelled when the lock is lost.

A client belongs to one event loop at a time. Not promised: a body which swallows `CancelledError` goes on
running; when it ends, the loss is raised all the same.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from math import inf
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from volcano_locks.asyncio.block import AsyncLockBlock
from volcano_locks.asyncio.closing_sender import UntilClosed
from volcano_locks.clock import Clock, SystemClock
from volcano_locks.config import TIMEOUT_SECONDS, Config
from volcano_locks.holding.block import Block
from volcano_locks.holding.guard import AsyncLockGuard
from volcano_locks.http.transport import HttpSender, perform
from volcano_locks.protocol.effects import Flow
from volcano_locks.protocol.lock_operations import LockFlows
from volcano_locks.protocol.messages import Lease, LockState, Uuid, checked_hold, checked_key, checked_ttl

if TYPE_CHECKING:
    import httpx2

    from volcano_locks.features.exclusive import OnHeld
    from volcano_locks.features.watch import Leadership
    from volcano_locks.protocol.lock_view import LockView, Page, State

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncClient:
    """A connection to the lock service for asyncio. Arguments as for `Client`."""

    def __init__(
        self,
        api_url: str | None = None,
        service_key: str | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        holder: str | None = None,
        clock: Clock | None = None,
        transport: "httpx2.AsyncBaseTransport | None" = None,
    ) -> None:
        config = Config.resolve(api_url, service_key, timeout_seconds, holder)
        self._repr = f"{type(self).__name__}({config.api_url!r})"
        self._sender = UntilClosed(HttpSender(config, transport))
        self.locks = AsyncLocks(config, clock or SystemClock(), self._sender)

    async def close(self) -> None:
        """Close the connections of this loop; the client sends nothing any more. Who waits for a lock is told so, once
        the place in the line is given back (bounded). Leave the blocks first: they release over the connections."""
        await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return self._repr


class AsyncLocks:
    """The verbs. Each raises `VolcanoError`s for answers and `TypeError` or `ValueError` for bad arguments."""

    def __init__(self, config: Config, clock: Clock, sender: UntilClosed) -> None:
        self._clock = clock
        self._sender = sender
        self._flows = LockFlows(clock.now, config.timeout_seconds)

    async def acquire(
        self,
        key: str,
        *,
        ttl: int,
        wait: float | None = None,
        token: Uuid | None = None,
        request_id: Uuid | None = None,
    ) -> Lease:
        """Acquire the lock and return a lease of `ttl` seconds; `LockHeldError` if it is held.

        `wait`, `token` and `request_id`, with which an uncertain acquire is recovered (SDK-18): see `Locks.acquire`.
        """
        acquire = self._flows.acquire(key, ttl, token, request_id, wait)
        return await self._sender.ending(perform(acquire, self._sender, self._clock))

    async def renew(self, key: str, lease: Lease, *, ttl: int | None = None, request_id: Uuid | None = None) -> Lease:
        """Renew `lease` of the lock `key` and return the lease that ends `ttl` seconds (default: its own) from now.

        Raises `LockOwnershipLostError` if the lease is lost. Raises `TypeError` if `lease` is not a `Lease`, and
        `ValueError` if it is one of another lock; nothing is sent then.

        Never renew a block's lease by hand, and never shorten one after a renewal that timed out: see `Locks.renew`.
        """
        return await perform(self._flows.renew(key, lease, ttl, request_id), self._sender, self._clock)

    async def release(self, key: str, lease: Lease, *, request_id: Uuid | None = None) -> None:
        """Release `lease` and so free the lock `key`; `LockOwnershipLostError` if another owner holds it by now.

        Raises `TypeError` if `lease` is not a `Lease`, and `ValueError` if it is one of another lock; nothing is sent
        then.
        """
        return await perform(self._flows.release(key, lease, request_id), self._sender, self._clock)

    async def get(self, key: str, *, request_id: Uuid | None = None) -> LockState:
        """Whether the lock is held, until when, and its fencing token."""
        return await perform(self._flows.get(key, request_id), self._sender, self._clock)

    async def view(self, key: str, *, request_id: Uuid | None = None) -> "LockView":
        """Who holds the lock, since when and until when, and how many wait for it."""
        return await perform(self._flows.view(key, request_id), self._sender, self._clock)

    def list(self, prefix: str = "", *, state: "State" = "all") -> "AsyncIterator[LockView]":
        """The locks whose keys begin with `prefix`, in the keys' order; `state` is `held`, `free` or `all`.

        They come in pages, each asked for when it is needed:

            async for view in client.locks.list("reports:", state="held"):
                print(view.key, view.holder, view.expires_at)
        """
        return self._listed(self._flows.pages(prefix, state))

    async def force_release(self, key: str, *, request_id: Uuid | None = None) -> None:
        """Free the lock whoever holds it. Its holder is told of the loss at its next renewal."""
        return await perform(self._flows.force_release(key, request_id), self._sender, self._clock)

    def with_lock(
        self,
        key: str,
        *,
        ttl: int,
        wait: float | None = None,
        hold_at_least: float | None = None,
        token: Uuid | None = None,
        request_id: Uuid | None = None,
    ) -> AsyncLockBlock:
        """An asynchronous context manager: hold the lock, renewed in the background, while its body runs.

        Entering raises `LockHeldError` and the like, and the body does not run (case 18). On loss the body is
        cancelled and `LockOwnershipLostError` raised in its place. Nothing else cancels the body, except the caller
        (SDK-20). For the other arguments see `Locks.with_lock`.
        """
        acquire = self._flows.acquire(key, ttl, token, request_id, wait, for_block=True)
        block = Block(self._flows, self._sender, self._clock, acquire, hold_at_least)
        return AsyncLockBlock(block, self._sender)

    async def lead(self, key: str, run: Callable[[AsyncLockGuard], Awaitable[T]], *, ttl: int) -> T:
        """Wait for the lock, for ever, and run `run(guard)` while holding it; after a loss, again.

            async def work(guard):
                while True:
                    await plan_jobs(fencing_token=guard.fencing_token)

            await client.locks.lead("scheduler", work, ttl=15)

        Gives back what `run` returned while it led, and raises what it raised. A loss cancels `run`, and the next
        campaign begins when it has ended. Cancelling `lead`, or closing the client, ends it (SDK-13).
        """
        from volcano_locks.features import leader  # noqa: PLC0415 - seldom needed

        return await leader.lead_async(lambda: self.with_lock(key, ttl=ttl, wait=inf), run)

    @overload
    def exclusive(
        self, key: str, *, ttl: int, on_held: 'Literal["raise", "wait"]' = ..., hold_at_least: float | None = ...
    ) -> "Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]": ...

    @overload
    def exclusive(
        self, key: str, *, ttl: int, on_held: 'Literal["skip"]', hold_at_least: float | None = ...
    ) -> "Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | None]]]": ...

    def exclusive(
        self, key: str, *, ttl: int, on_held: "OnHeld" = "raise", hold_at_least: float | None = None
    ) -> "Callable[[Callable[P, Any]], Callable[P, Any]]":
        """A decorator: the function runs under the lock that `key` names, a template of the function's arguments.

            @client.locks.exclusive("report-{day}", ttl=60, on_held="skip", hold_at_least=60)
            async def report(day: str, guard: AsyncLockGuard | None = None) -> None: ...

        If the lock is held, a call raises `LockHeldError`, or by `on_held` is skipped (and gives None), or waits. An
        argument named `guard` that the caller leaves out is the block's guard. See `with_lock` for all else (SDK-16).
        """
        from volcano_locks.features import exclusive  # noqa: PLC0415 - seldom needed

        checked_ttl(ttl)
        checked_hold(hold_at_least)
        return exclusive.asynchronous(
            key, on_held, lambda key, wait: self.with_lock(key, ttl=ttl, wait=wait, hold_at_least=hold_at_least)
        )

    def watch(self, key: str) -> "AsyncGenerator[Leadership, None]":
        """The changes of who holds the lock: first how it is now, then each, for as long as you ask.

            async for change in client.locks.watch("scheduler"):
                print(change.holder if change.held else "nobody", change.since)

        Goes on over broken connections and restarts; a refusal is raised. Never the same twice in a row (SDK-14).
        """
        from volcano_locks.features.watch import Watch  # noqa: PLC0415 - seldom needed

        changes = Watch(checked_key(key), self._flows, self._sender, self._clock).changes()
        return self._sender.iterate(changes)

    async def _listed(self, pages: "Callable[[str | None], Flow[Page]]") -> "AsyncIterator[LockView]":
        cursor: str | None = None
        while True:
            page = await perform(pages(cursor), self._sender, self._clock)
            for view in page.views:
                yield view
            cursor = page.next_cursor
            if cursor is None:
                return
