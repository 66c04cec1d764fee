"""The client for asyncio: the same calls, awaited. A loss cancels the body of a block. A client belongs to one loop
at a time.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from math import inf
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, cast, overload

from volcano_locks.asyncio.block import AsyncLockBlock, AsyncLockGuard
from volcano_locks.asyncio.driver import AsyncDriver
from volcano_locks.asyncio.waiting import run_shielded
from volcano_locks.clock import Clock
from volcano_locks.config import Config
from volcano_locks.errors import VolcanoError
from volcano_locks.holding.client import BaseClient, BaseLocks, checked_block
from volcano_locks.protocol.arguments import Uuid, checked_key
from volcano_locks.protocol.lease import Lease, LockState

if TYPE_CHECKING:
    from datetime import datetime

    from volcano_locks.features.exclusive import OnHeld
    from volcano_locks.features.watch import Leadership
    from volcano_locks.http.transport import Transport
    from volcano_locks.protocol.hold_entry import HoldEntry
    from volcano_locks.protocol.lock_view import LockView, StateFilter

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncClient(BaseClient):
    """A client of the lock service for asyncio.

    ```python
    async with AsyncClient() as client, client.locks.with_lock("daily-rollup", ttl=30) as guard:
        await rollup(fencing_token=guard.fencing_token)
    ```
    """

    locks: "AsyncLocks"

    def _set_up(self, config: Config, clock: Clock, transport: "Transport | None") -> None:
        self.locks = AsyncLocks(config, clock, transport)

    async def close(self) -> None:
        """Cancel the waits (bounded), close the connections of this loop, and send nothing more. Leave all blocks
        first.
        """
        await self.locks._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncLocks(BaseLocks):
    """The calls. Each raises a `VolcanoError` if it fails, and `TypeError` or `ValueError` for bad arguments."""

    def __init__(self, config: Config, clock: Clock, transport: "Transport | None") -> None:
        super().__init__(config, clock)
        self._driver = AsyncDriver(config, clock, transport, self._blocks)

    async def acquire(
        self,
        key: str,
        *,
        ttl: int,
        wait: float | None = None,
        token: Uuid | None = None,
        request_id: Uuid | None = None,
    ) -> Lease:
        """Acquire the lock and return a lease of `ttl` seconds; `LockHeldError` if it is held. See `Locks.acquire`.

        ```python
        lease = await client.locks.acquire("daily-rollup", ttl=30)
        ```
        """
        acquire = self._operations.acquire(key, ttl, token, request_id, wait)
        return await self._driver.cancel_on_close(self._driver.run(acquire))

    async def renew(self, key: str, lease: Lease, *, ttl: int | None = None, request_id: Uuid | None = None) -> Lease:
        """Renew `lease` and return the lease that ends `ttl` seconds (default: its own) from now. See `Locks.renew`.

        ```python
        lease = await client.locks.renew("daily-rollup", lease, ttl=60)
        ```
        """
        return await self._driver.run(self._operations.renew(key, lease, ttl, request_id))

    async def release(self, key: str, lease: Lease, *, request_id: Uuid | None = None) -> None:
        """Release `lease` and so free the lock `key`. See `Locks.release`.

        ```python
        await client.locks.release("daily-rollup", lease)
        ```
        """
        release = self._operations.release(key, lease, request_id)
        try:
            return await self._driver.run(release)
        except asyncio.CancelledError:  # possibly before anything was sent (case 49)
            with contextlib.suppress(VolcanoError):
                await run_shielded(self._driver.run(self._operations.undo_acquire(lease)))
            raise

    async def get(self, key: str, *, request_id: Uuid | None = None) -> LockState:
        """Return whether the lock is held, until when, and its fencing token.

        ```python
        state = await client.locks.get("daily-rollup")
        print(state.held, state.expires_at)
        ```
        """
        return await self._driver.run(self._operations.get(key, request_id))

    async def view(self, key: str, *, request_id: Uuid | None = None) -> "LockView":
        """Return who holds the lock, since when and until when, and how many acquires wait for it.

        ```python
        view = await client.locks.view("daily-rollup")
        print(view.holder, view.expires_at, view.waiters)
        ```
        """
        return await self._driver.run(self._operations.view(key, request_id))

    def list(self, prefix: str = "", *, state: "StateFilter" = "all") -> "AsyncIterator[LockView]":
        """Iterate over the locks whose keys begin with `prefix`, with `async for`. See `Locks.list`.

        ```python
        async for view in client.locks.list("reports:", state="held"):
            print(view.key, view.holder)
        ```
        """
        return cast("AsyncIterator[LockView]", self._driver.iterate(self._operations.list(prefix, state)))

    def history(
        self,
        key: str | None = None,
        *,
        prefix: str = "",
        at: "datetime | None" = None,
        since: "datetime | None" = None,
        before: "datetime | None" = None,
    ) -> "AsyncIterator[HoldEntry]":
        """Iterate over who held the lock, the latest hold first, with `async for`. See `Locks.history`."""
        operation = self._operations.history(key, prefix, at, since, before)
        return cast("AsyncIterator[HoldEntry]", self._driver.iterate(operation))

    async def force_release(
        self,
        key: str,
        *,
        fencing_token: int | None = None,
        reason: str | None = None,
        request_id: Uuid | None = None,
    ) -> None:
        """Free the lock, regardless of its holder. The holder learns of the loss at its next renewal.

        With `fencing_token`, only that lease: a `ConflictError` with the code `lock_changed` means that the lock has
        changed hands since you looked, and nothing was freed. A `NotFoundError` means that the server is too old for
        that; nothing was freed either. `reason`, of at most 200 characters, is shown in the server's log and in the
        `force_released` event.

            view = await client.locks.view("daily-rollup")
            await client.locks.force_release("daily-rollup", fencing_token=view.fencing_token)
        """
        return await self._driver.run(self._operations.force_release(key, fencing_token, reason, request_id))

    def with_lock(
        self,
        key: str,
        *,
        ttl: int,
        wait: float | None = None,
        hold_at_least: float | None = None,
        renew_every: float | None = None,
        token: Uuid | None = None,
        request_id: Uuid | None = None,
    ) -> AsyncLockBlock:
        """Return an asynchronous context manager, or decorator: hold the lock, renewed, while its body runs.

            async with client.locks.with_lock("daily-rollup", ttl=30) as guard:
                await rollup(fencing_token=guard.fencing_token)

        Entering raises `LockHeldError` and other errors, and the body does not run then. A loss cancels the body and
        raises `LockOwnershipLostError` in its place; otherwise only the caller may cancel it. For the other arguments
        see `Locks.with_lock`.
        """

        def new_block() -> AsyncLockBlock:
            block = self._new_block(key, ttl, wait, hold_at_least, renew_every, token, request_id)
            return AsyncLockBlock(block, self._driver, None if token else new_block)

        return new_block()

    async def lead(
        self, key: str, run: Callable[[AsyncLockGuard], Awaitable[T]], *, ttl: int, renew_every: float | None = None
    ) -> T:
        """Wait for the lock without a limit and run `run(guard)` while holding it; after a loss, campaign again.

            async def work(guard):
                while True:
                    await plan_jobs(fencing_token=guard.fencing_token)

            await client.locks.lead("scheduler", work, ttl=15)

        Returns what `run` returned while it led, and raises what it raised. A loss cancels `run`, and the next campaign
        begins after its end. Cancelling `lead`, or closing the client, ends it.
        """
        from volcano_locks.features import leader  # noqa: PLC0415 - rarely needed

        return await leader.lead_async(lambda: self.with_lock(key, ttl=ttl, wait=inf, renew_every=renew_every), run)

    @overload
    def exclusive(
        self,
        key: str,
        *,
        ttl: int,
        on_held: 'Literal["raise", "wait"]' = ...,
        hold_at_least: float | None = ...,
        renew_every: float | None = ...,
    ) -> "Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]": ...

    @overload
    def exclusive(
        self,
        key: str,
        *,
        ttl: int,
        on_held: 'Literal["skip"]',
        hold_at_least: float | None = ...,
        renew_every: float | None = ...,
    ) -> "Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | None]]]": ...

    def exclusive(
        self,
        key: str,
        *,
        ttl: int,
        on_held: "OnHeld" = "raise",
        hold_at_least: float | None = None,
        renew_every: float | None = None,
    ) -> "Callable[[Callable[P, Any]], Callable[P, Any]]":
        """A decorator: the function runs under the lock that `key` names, a template of the function's arguments.

            @client.locks.exclusive("report-{day}", ttl=60, on_held="skip", hold_at_least=60)
            async def report(day: str, guard: AsyncLockGuard | None = None) -> None: ...

        See `Locks.exclusive`.
        """
        from volcano_locks.features import exclusive  # noqa: PLC0415 - rarely needed

        checked_block(ttl, hold_at_least, renew_every)
        return exclusive.asynchronous(
            key,
            on_held,
            lambda key, wait: self.with_lock(
                key, ttl=ttl, wait=wait, hold_at_least=hold_at_least, renew_every=renew_every
            ),
        )

    def watch(self, key: str) -> "AsyncGenerator[Leadership, None]":
        """Iterate over who holds the lock, with `async for`, without end. See `Locks.watch`.

        ```python
        async for change in client.locks.watch("scheduler"):
            print(change.holder if change.held else "free")
        ```
        """
        from volcano_locks.features.watch import Watch  # noqa: PLC0415 - rarely needed

        watch = Watch(checked_key(key), self._operations, self._clock.now)
        return cast("AsyncGenerator[Leadership, None]", self._driver.iterate(watch.changes()))
