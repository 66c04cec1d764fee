"""FastAPI and Starlette: one of the web workers leads, and runs background work for all of them.

    app = FastAPI(lifespan=leading("scheduler", plan, ttl=15))

Each worker campaigns while it serves. A graceful shutdown cancels the leader's work and releases the lock, so that the
next worker leads at once. If the leader is killed, the next one leads when its lease has expired.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from volcano_locks import AsyncClient, AsyncLockGuard

RETRY_SECONDS = 5.0
STOP_SECONDS_MAX = 10.0
"""How long a shutdown waits for the work to end after its cancellation."""

Work = Callable[[AsyncLockGuard], Awaitable[object]]


class Leader:
    """Whether this worker leads. It is `request.state.leader`."""

    def __init__(self) -> None:
        self.guard: AsyncLockGuard | None = None
        """The guard of the lease, while the work runs."""

    @property
    def leads(self) -> bool:
        """Whether this worker holds the lease now."""
        return self.guard is not None and not self.guard.lost


def leading(
    key: str, work: Work, *, ttl: int = 15, client: Callable[[], AsyncClient] = AsyncClient
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Leader]]]:
    """A lifespan for `FastAPI(lifespan=…)` and `Starlette(lifespan=…)`: one worker at a time runs `work(guard)`.

        async def plan(guard: AsyncLockGuard) -> None:
            while True:
                await plan_jobs(fencing_token=guard.fencing_token)
                await asyncio.sleep(1)

        app = FastAPI(lifespan=leading("scheduler", plan, ttl=15))

    A loss cancels `work`, and the worker campaigns again. So it does some seconds after `work` has raised; the event
    loop's exception handler logs the error. If `work` returns, this worker leads no more. An application with its own
    lifespan enters this one inside it: `async with leading("scheduler", plan)(app): yield`.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Leader]]:
        del app
        leader = Leader()
        async with client() as own:
            campaign = asyncio.create_task(_campaign(own, key, work, ttl, leader), name=f"campaign for {key}")
            try:
                yield {"leader": leader}
            finally:
                campaign.cancel()
                await asyncio.wait((campaign,), timeout=STOP_SECONDS_MAX)

    return lifespan


async def _campaign(client: AsyncClient, key: str, work: Work, ttl: int, leader: Leader) -> None:
    async def term(guard: AsyncLockGuard) -> None:
        leader.guard = guard
        await work(guard)

    while True:
        try:
            return await client.locks.lead(key, term, ttl=ttl)
        except Exception as error:  # noqa: BLE001 - the event loop logs it, as it does for tasks without an owner
            message = f"the leader's work for {key!r} failed, campaigning again"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
        await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - spreads the workers
