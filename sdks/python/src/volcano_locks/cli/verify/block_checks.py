"""What programs rely on: `with_lock` of the Python client over this service."""

import asyncio
from typing import NoReturn

from volcano_locks.errors import LockOwnershipLostError

from .check import Room, new_token
from .http_client import Broken


class _BodyError(Exception):
    """The body's own error."""


async def released_after_success(room: Room) -> str:
    """When the body has ended, the lock is free."""
    async with room.async_client() as client, client.locks.with_lock(room.key, ttl=room.ttl_seconds) as guard:
        await room.expect_held(guard.lease, "entering the block")
    await room.expect_free("the block")
    return "held inside the block, free after it"


async def released_after_failure(room: Room) -> str:
    """When the body has raised, the lock is free, and the body's own error comes out."""
    try:
        async with room.async_client() as client, client.locks.with_lock(room.key, ttl=room.ttl_seconds) as guard:
            await room.expect_held(guard.lease, "entering the block")
            _fail()
    except _BodyError:
        await room.expect_free("a body that raised")
    return "free after a body that raised, its error kept"


async def a_loss_reaches_the_block(room: Room) -> str:
    """A body in a thread that asks `guard.lost` is told at the next renewal, before its lease would have ended."""
    loop = asyncio.get_running_loop()

    def force_out() -> None:
        asyncio.run_coroutine_threadsafe(room.wire.force_release(room.key), loop).result()

    def body() -> tuple[bool, LockOwnershipLostError | None]:
        told = False
        try:
            with room.client() as client, client.locks.with_lock(room.key, ttl=room.ttl_seconds) as guard:
                force_out()
                told = guard.wait_lost(room.ttl_seconds)
        except LockOwnershipLostError as loss:
            return told, loss
        return told, None

    began = room.clock.now()
    told, loss = await asyncio.to_thread(body)
    return _judged(loss if told else None, room, began)


async def a_loss_cancels_the_block(room: Room) -> str:
    """An asyncio body is cancelled at the next renewal, before its lease would have ended."""
    began = room.clock.now()
    found: LockOwnershipLostError | None = None
    try:
        async with room.async_client() as client, client.locks.with_lock(room.key, ttl=room.ttl_seconds):
            await room.wire.force_release(room.key)
            # Another holder, so that the old one cannot slip back in by any means.
            await room.wire.acquire(room.key, new_token(), room.ttl_seconds)
            await room.clock.pause(room.ttl_seconds + 1)
    except LockOwnershipLostError as loss:
        found = loss
    return _judged(found, room, began)


def _fail() -> NoReturn:
    raise _BodyError


def _judged(loss: LockOwnershipLostError | None, room: Room, began: float) -> str:
    """A loss that the server told counts; one that was only found at the local deadline came too late."""
    if loss is None or loss.status is None:
        raise Broken(f"forced out, the block was not told within its {room.ttl_seconds} s")
    return f"told {room.clock.now() - began:.1f} s after it was forced out"
