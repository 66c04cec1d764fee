"""Checks of what programs use: `with_lock` of the Python client with this service."""

import asyncio
from typing import Final, NoReturn

from volcano_locks.errors import LockOwnershipLostError

from .check import Checks, ScratchLock, new_token
from .http_client import BrokenPromise

CHECKS: Final = Checks()


class _BodyError(Exception):
    """The body's own error."""


@CHECKS.add("released after success", "public", "SDK-5")
async def released_after_success(lock: ScratchLock) -> str:
    """When the body has ended, the lock is free."""
    async with lock.async_client() as client, client.locks.with_lock(lock.key, ttl=lock.ttl_seconds) as guard:
        await lock.expect_held(guard.lease, "entering the block")
    await lock.expect_free("the block")
    return "held inside the block, free after it"


@CHECKS.add("released after failure", "public", "SDK-5")
async def released_after_failure(lock: ScratchLock) -> str:
    """When the body has raised, the lock is free and the body's error propagates."""
    try:
        async with lock.async_client() as client, client.locks.with_lock(lock.key, ttl=lock.ttl_seconds) as guard:
            await lock.expect_held(guard.lease, "entering the block")
            _fail()
    except _BodyError:
        await lock.expect_free("a body that raised")
    return "free after a body that raised, its error kept"


@CHECKS.add("a loss reaches the block", "public", "SDK-3", "SDK-4", waits=True)
async def a_loss_reaches_the_block(lock: ScratchLock) -> str:
    """A thread that waits on its guard is notified at the next renewal, before its lease would end."""
    loop = asyncio.get_running_loop()

    def force_out() -> None:
        asyncio.run_coroutine_threadsafe(lock.http.force_release(lock.key), loop).result()

    def body() -> tuple[bool, LockOwnershipLostError | None]:
        notified = False
        try:
            with lock.client() as client, client.locks.with_lock(lock.key, ttl=lock.ttl_seconds) as guard:
                force_out()
                notified = guard.wait_lost(lock.ttl_seconds)
        except LockOwnershipLostError as loss:
            return notified, loss
        return notified, None

    began = lock.clock.now()
    notified, loss = await asyncio.to_thread(body)
    return _expect_notified(loss if notified else None, lock, began)


@CHECKS.add("a loss cancels an async block", "public", "SDK-3", "SDK-4", waits=True)
async def a_loss_cancels_the_block(lock: ScratchLock) -> str:
    """An asyncio body is cancelled at the next renewal, before its lease would end."""
    began = lock.clock.now()
    found: LockOwnershipLostError | None = None
    try:
        async with lock.async_client() as client, client.locks.with_lock(lock.key, ttl=lock.ttl_seconds):
            await lock.http.force_release(lock.key)
            # Another holder, so that the old one cannot acquire again.
            await lock.http.acquire(lock.key, new_token(), lock.ttl_seconds)
            await lock.sleep_until(lock.clock.now() + lock.ttl_seconds + 1)
    except LockOwnershipLostError as loss:
        found = loss
    return _expect_notified(found, lock, began)


def _fail() -> NoReturn:
    raise _BodyError


def _expect_notified(loss: LockOwnershipLostError | None, lock: ScratchLock, began: float) -> str:
    """Only a loss reported by the server counts; at the local deadline it was noticed too late."""
    if loss is None or loss.status is None:
        raise BrokenPromise(f"the block was not notified of a force release within its {lock.ttl_seconds} s")
    return f"notified {lock.clock.now() - began:.1f} s after a force release"
