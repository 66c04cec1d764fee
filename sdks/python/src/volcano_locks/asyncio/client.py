"""The client for asyncio: the same calls, awaited; a loss cancels the body of a block. It belongs to one loop at a
time.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from math import inf
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, cast, overload

from volcano_locks.asyncio.block import AsyncLockBlock
from volcano_locks.asyncio.driver import AsyncDriver
from volcano_locks.asyncio.guard import AsyncLockGuard
from volcano_locks.asyncio.waiting import run_shielded
from volcano_locks.clock import Clock, SystemClock
from volcano_locks.config import TIMEOUT_SECONDS, Config
from volcano_locks.errors import VolcanoError
from volcano_locks.holding.block import Block
from volcano_locks.holding.blocks_of_client import BlocksOfClient
from volcano_locks.protocol.arguments import Uuid, checked_hold, checked_key, checked_renew_every, checked_ttl
from volcano_locks.protocol.checked_operations import CheckedOperations
from volcano_locks.protocol.lease import Lease, LockState

if TYPE_CHECKING:
    from volcano_locks.features.exclusive import OnHeld
    from volcano_locks.features.watch import Leadership
    from volcano_locks.http.transport import Transport
    from volcano_locks.protocol.lock_view import LockView, StateFilter

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncClient:
    """A client of the lock service for asyncio. Arguments as for `Client`."""

    def __init__(
        self,
        api_url: str | None = None,
        service_key: str | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        holder: str | None = None,
        clock: Clock | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        transport: "Transport | None" = None,
    ) -> None:
        config = Config.resolve(api_url, service_key, timeout_seconds, holder, ca_file)
        self._repr = f"{type(self).__name__}({config.api_url!r})"
        clock = clock or SystemClock()
        blocks = BlocksOfClient()
        self._driver = AsyncDriver(config, clock, transport, blocks)
        self.locks = AsyncLocks(config, clock, self._driver, blocks)

    async def close(self) -> None:
        """Cancel the waits (bounded), close the connections of this loop, and send nothing more. Leave the blocks
        before.
        """
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return self._repr


class AsyncLocks:
    """The calls. Each raises a `VolcanoError` if it fails, and `TypeError` or `ValueError` for bad arguments."""

    def __init__(self, config: Config, clock: Clock, driver: AsyncDriver, blocks: BlocksOfClient) -> None:
        self._clock = clock
        self._driver = driver
        self._operations = CheckedOperations(clock.now, config.timeout_seconds)
        self._blocks = blocks

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

        `wait`, `token` and `request_id`, which recover an uncertain acquire (SDK-18): see `Locks.acquire`.
        """
        acquire = self._operations.acquire(key, ttl, token, request_id, wait)
        return await self._driver.cancel_on_close(self._driver.run(acquire))

    async def renew(self, key: str, lease: Lease, *, ttl: int | None = None, request_id: Uuid | None = None) -> Lease:
        """Renew `lease` of the lock `key` and return the lease that ends `ttl` seconds (default: its own) from now.

        Raises `LockOwnershipLostError` if the lease is lost, `TypeError` if `lease` is not a `Lease` and
        `ValueError` if it belongs to another lock; nothing is sent then.

        Never renew a block's lease by hand, and never shorten one after a renewal that timed out: see `Locks.renew`.
        """
        return await self._driver.run(self._operations.renew(key, lease, ttl, request_id))

    async def release(self, key: str, lease: Lease, *, request_id: Uuid | None = None) -> None:
        """Release `lease` and so free the lock `key`; `LockOwnershipLostError` if another owner holds it by now.

        Raises `TypeError` if `lease` is not a `Lease` and `ValueError` if it belongs to another lock; nothing is sent.
        """
        release = self._operations.release(key, lease, request_id)
        try:
            return await self._driver.run(release)
        except asyncio.CancelledError:  # possibly before anything was sent (case 49)
            with contextlib.suppress(VolcanoError):
                await run_shielded(self._driver.run(self._operations.undo_acquire(lease)))
            raise

    async def get(self, key: str, *, request_id: Uuid | None = None) -> LockState:
        """Return whether the lock is held, until when, and its fencing token."""
        return await self._driver.run(self._operations.get(key, request_id))

    async def view(self, key: str, *, request_id: Uuid | None = None) -> "LockView":
        """Return who holds the lock, since when and until when, and how many acquires wait for it."""
        return await self._driver.run(self._operations.view(key, request_id))

    def list(self, prefix: str = "", *, state: "StateFilter" = "all") -> "AsyncIterator[LockView]":
        """Iterate over the locks whose keys begin with `prefix`, in key order; `state` is `held`, `free` or `all`.

        Pages are requested on demand:

            async for view in client.locks.list("reports:", state="held"):
                print(view.key, view.holder, view.expires_at)
        """
        return cast("AsyncIterator[LockView]", self._driver.iterate(self._operations.list(prefix, state)))

    async def force_release(self, key: str, *, request_id: Uuid | None = None) -> None:
        """Free the lock, regardless of its holder. The holder learns of the loss at its next renewal."""
        return await self._driver.run(self._operations.force_release(key, request_id))

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

        Entering raises `LockHeldError` and other errors, and the body does not run then (case 18). A loss cancels the
        body and raises `LockOwnershipLostError` in its place; only the caller may cancel it otherwise (SDK-20). For the
        other arguments see `Locks.with_lock`.
        """

        every = checked_renew_every(renew_every, checked_ttl(ttl))

        def new_block() -> AsyncLockBlock:
            acquire = self._operations.acquire(key, ttl, token, request_id, wait, for_block=True)
            block = Block(
                key,
                self._operations,
                self._clock,
                acquire,
                self._blocks,
                hold_at_least=hold_at_least,
                renew_every=every,
            )
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
        begins after its end. Cancelling `lead`, or closing the client, ends it (SDK-13).
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

        If the lock is held, a call raises `LockHeldError`; with `on_held="skip"` it returns None, with `"wait"` it
        waits. An argument named `guard` that the caller omits receives the block's guard. Everything else is as in
        `with_lock` (SDK-16).
        """
        from volcano_locks.features import exclusive  # noqa: PLC0415 - rarely needed

        checked_ttl(ttl)
        checked_hold(hold_at_least)
        checked_renew_every(renew_every, ttl)
        return exclusive.asynchronous(
            key,
            on_held,
            lambda key, wait: self.with_lock(
                key, ttl=ttl, wait=wait, hold_at_least=hold_at_least, renew_every=renew_every
            ),
        )

    def watch(self, key: str) -> "AsyncGenerator[Leadership, None]":
        """Iterate over who holds the lock: first the current leadership, then each change, without end.

            async for change in client.locks.watch("scheduler"):
                print(change.holder if change.held else "free", change.since)

        Continues over broken connections and restarts; raises other errors. No item repeats the last one (SDK-14).
        """
        from volcano_locks.features.watch import Watch  # noqa: PLC0415 - rarely needed

        watch = Watch(checked_key(key), self._operations, self._clock.now)
        return cast("AsyncGenerator[Leadership, None]", self._driver.iterate(watch.changes()))
