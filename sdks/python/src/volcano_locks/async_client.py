"""The client for asyncio: the same verbs, awaited; the block's body is cancelled when the lock is lost.

Cancelling takes the care `asyncio.timeout` takes: the guard cancels its task once, takes that cancellation
back on leaving, and turns it into `LockOwnershipLostError` only if nobody else has cancelled the task too; a
cancellation from outside always wins.

A client belongs to one event loop at a time. Not promised: a body which swallows `CancelledError` goes on
running; when it ends, the loss is raised all the same.
"""

import asyncio
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Self

from volcano_locks.block import Block, outcome_of
from volcano_locks.clock import Clock, SystemClock
from volcano_locks.config import TIMEOUT_SECONDS, Config
from volcano_locks.errors import CLOSED, VolcanoError
from volcano_locks.flows import Request
from volcano_locks.guard import AsyncLockGuard
from volcano_locks.locks import LockFlows
from volcano_locks.messages import Answer, Lease, LockState
from volcano_locks.transport import HttpSender, Sender, perform

if TYPE_CHECKING:
    import httpx2


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
        self._sender = _UntilClosed(HttpSender(config, transport))
        self.locks = AsyncLocks(config, clock or SystemClock(), self._sender)

    async def close(self) -> None:
        """Close the connections of this loop; the client sends nothing any more. Leave the blocks first: they
        release over the connections."""
        await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return self._repr


class _UntilClosed:
    """Sends over `sender` until the client is closed: a connection opened later would be closed by nobody."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender
        self._closed = False

    async def send(self, request: Request) -> Answer:
        if self._closed:
            raise VolcanoError(CLOSED, request_id=request.request_id)
        return await self._sender.send(request)

    async def close(self) -> None:
        self._closed = True
        await self._sender.aclose()


class AsyncLocks:
    """The verbs. Each raises `VolcanoError`s for answers and `TypeError` or `ValueError` for bad arguments."""

    def __init__(self, config: Config, clock: Clock, sender: Sender) -> None:
        self._clock = clock
        self._sender = sender
        self._flows = LockFlows(clock.now, config.timeout_seconds)

    async def acquire(self, key: str, *, ttl: int, token: str | None = None, request_id: str | None = None) -> Lease:
        """A lease of `ttl` seconds, or `LockHeldError`. The same `token` again gives the same lease."""
        return await perform(self._flows.acquire(key, ttl, token, request_id), self._sender, self._clock)

    async def renew(self, lease: Lease, *, ttl: int | None = None, request_id: str | None = None) -> Lease:
        """The lease, now ending `ttl` seconds (default: its own) from now, or `LockOwnershipLostError`.

        Never renew a block's lease by hand, and never shorten one after a renewal that timed out: see `Locks.renew`.
        """
        return await perform(self._flows.renew(lease, ttl, request_id), self._sender, self._clock)

    async def release(self, lease: Lease, *, request_id: str | None = None) -> None:
        """Free the lock; `LockOwnershipLostError` if somebody else holds it by now."""
        return await perform(self._flows.release(lease, request_id), self._sender, self._clock)

    async def get(self, key: str, *, request_id: str | None = None) -> LockState:
        """Whether the lock is held, until when, and its fencing token."""
        return await perform(self._flows.get(key, request_id), self._sender, self._clock)

    async def force_release(self, key: str, *, request_id: str | None = None) -> None:
        """Free the lock whoever holds it. Its holder is told of the loss at its next renewal."""
        return await perform(self._flows.force_release(key, request_id), self._sender, self._clock)

    def with_lock(self, key: str, *, ttl: int, token: str | None = None) -> "AsyncLockBlock":
        """An asynchronous context manager: hold the lock, renewed in the background, while its body runs.

        Entering raises `LockHeldError` and the like, and the body does not run (case 18). On loss the body is
        cancelled and `LockOwnershipLostError` raised in its place.
        """
        acquire = self._flows.acquire(key, ttl, token, None)
        return AsyncLockBlock(Block(self._flows, self._sender, self._clock, acquire))


class AsyncLockBlock:
    """What `with_lock` returns. Good for one `async with`, in one task."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._guard: AsyncLockGuard | None = None
        self._interrupt: _Interrupt | None = None
        self._forgotten: weakref.finalize[..., AsyncLockBlock] | None = None

    async def __aenter__(self) -> AsyncLockGuard:
        self._interrupt = _Interrupt()
        hold = await self._block.enter(on_lost=self._interrupt.send)
        # A block that is forgotten rather than left must not be renewed for ever.
        self._forgotten = weakref.finalize(self, hold.leave)
        self._forgotten.atexit = False
        self._guard = AsyncLockGuard(hold)
        return self._guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._guard is not None
        assert self._interrupt is not None
        assert self._forgotten is not None
        self._block.stop()
        self._forgotten.detach()  # an interrupt that hits a finalizer is swallowed
        ours = self._interrupt.take_back(error)
        loss = self._guard._hold.loss()
        if not self._guard._hold.forked:
            loss = await self._block.leave()
        self._guard._release_error = self._block.release_error
        outcome = outcome_of(None if ours else error, loss, self._block.release_error)
        if outcome is not None:
            raise outcome


class _Interrupt:
    """At most one cancellation of the task that made it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling_before = task.cancelling()
        self._sent = False

    def send(self) -> None:
        self._sent = True
        self._task.cancel()

    def take_back(self, error: BaseException | None) -> bool:
        """Undo `send`; whether `error` is nothing but its effect."""
        if not self._sent:
            return False
        others = self._task.uncancel() > self._cancelling_before
        return isinstance(error, asyncio.CancelledError) and not others
