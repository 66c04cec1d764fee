"""How requests are counted against their project's quota: by this process alone, or with the nodes that share a store.

Both ways have one face. `admit` answers at once and never waits, so that a request whose quota is known costs no
detour of the event loop. With a shared count it answers None where this node has used up what it drew; then
`admit_drawing` draws more. That is one round trip for all requests of the project that wait for it, and it fails
closed: where the store cannot answer, nobody knows whether the quota is spent, and the lock commands could not be
served anyway (QUOTA-8).

Not promised: the minute is that of each node's clock. Nodes whose clocks disagree change their minute at different
moments, and each minute has its limit.
"""

import asyncio
from typing import Final, Protocol

from ..ports.clock import Clock
from ..ports.quota_store import QuotaStore
from ..rules.errors import StoreUnavailableError
from ..rules.quota import (
    Admission,
    Draw,
    Share,
    Window,
    admit,
    admit_from,
    given_back,
    share_at,
    share_given_back,
    window_at,
    with_drawn,
)

WINDOWS_MAX: Final = 10_000
DRAW_SECONDS_MAX: Final = 10.0
STOPPING: Final = "the service is stopping: try again in a moment"


class Counting(Protocol):
    """The two ways to count. `may_draw_on_reserve` is for renew and release."""

    def admit(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission | None:
        """Count one request of a project whose quota is `limit` (0: none), or None: `admit_drawing` has to."""
        ...

    async def admit_drawing(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission:
        """`admit`, drawing what it lacks. Raises StoreUnavailableError; then the request is not counted."""
        ...

    def give_back(self, project_id: str, admission: Admission) -> None:
        """Return to the reserve what was drawn for somebody who turned out not to own."""
        ...

    async def close(self) -> None:
        """Draw no more."""
        ...


class OwnCounting:
    """One process serves all requests, and counts them by itself."""

    def __init__(self, clock: Clock, *, owner_reserve: bool) -> None:
        self._clock: Final = clock
        self._owner_reserve: Final = owner_reserve
        self._windows: dict[str, Window] = {}

    def admit(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission:
        now_ms = self._clock.now_ms()
        window, admission = admit(
            self._windows.get(project_id),
            now_ms,
            limit=limit,
            may_draw_on_reserve=self._owner_reserve and may_draw_on_reserve,
        )
        if project_id not in self._windows and len(self._windows) >= WINDOWS_MAX:
            self._windows = {one: kept for one, kept in self._windows.items() if window_at(kept, now_ms) is kept}
        self._windows[project_id] = window
        return admission

    async def admit_drawing(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission:
        return self.admit(project_id, limit, may_draw_on_reserve=may_draw_on_reserve)

    def give_back(self, project_id: str, admission: Admission) -> None:
        window = self._windows.get(project_id)
        if window is not None:
            self._windows[project_id] = given_back(window, admission)

    async def close(self) -> None:
        return


class SharedCounting:
    """Several nodes serve a project's requests; each counts from the share that it drew."""

    def __init__(
        self, quotas: QuotaStore, clock: Clock, *, owner_reserve: bool, draw_seconds_max: float = DRAW_SECONDS_MAX
    ) -> None:
        self._quotas: Final = quotas
        self._clock: Final = clock
        self._owner_reserve: Final = owner_reserve
        self._draw_seconds_max: Final = draw_seconds_max
        self._shares: dict[str, Share] = {}
        self._draws: Final[dict[str, asyncio.Task[StoreUnavailableError | None]]] = {}
        self._waiting: Final[dict[str, int]] = {}
        self._closed = False

    def admit(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission | None:
        judged = self._judged(project_id, limit, may_draw_on_reserve)
        return None if isinstance(judged, Draw) else judged

    async def admit_drawing(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission:
        self._waiting[project_id] = self._waiting.get(project_id, 0) + 1
        try:
            async with asyncio.timeout(self._draw_seconds_max):
                while isinstance(judged := self._judged(project_id, limit, may_draw_on_reserve), Draw):
                    await self._draw(project_id, judged)
        except TimeoutError:
            raise _late(self._draw_seconds_max) from None
        finally:
            self._waiting[project_id] -= 1
            if not self._waiting[project_id]:
                del self._waiting[project_id]
        return judged

    def give_back(self, project_id: str, admission: Admission) -> None:
        share = self._shares.get(project_id)
        if share is not None:
            self._shares[project_id] = share_given_back(share, admission)

    async def close(self) -> None:
        self._closed = True
        draws = list(self._draws.values())
        for draw in draws:
            draw.cancel()
        if draws:
            await asyncio.wait(draws)

    def _judged(self, project_id: str, limit: int, may_draw_on_reserve: bool) -> Admission | Draw:
        now_ms = self._clock.now_ms()
        share, judged = admit_from(
            self._shares.get(project_id),
            now_ms,
            limit=limit,
            may_draw_on_reserve=self._owner_reserve and may_draw_on_reserve,
        )
        if project_id not in self._shares and len(self._shares) >= WINDOWS_MAX:
            self._shares = {one: kept for one, kept in self._shares.items() if share_at(kept, now_ms) is kept}
        self._shares[project_id] = share
        return judged

    async def _draw(self, project_id: str, draw: Draw) -> None:
        """Draw, or wait for the draw that is under way: one a project at a time, for all who wait by then."""
        if self._closed:
            raise StoreUnavailableError("stopping", STOPPING)
        task = self._draws.get(project_id)
        if task is None:
            wanted = max(draw.wanted, self._waiting[project_id])
            task = asyncio.create_task(self._drawn(project_id, draw._replace(wanted=wanted)), name="quota-draw")
            self._draws[project_id] = task
        try:
            failure = await asyncio.shield(task)  # whoever gives up leaves the draw to the others
        except asyncio.CancelledError:
            if task.cancelled():
                raise StoreUnavailableError("stopping", STOPPING) from None
            raise
        if failure is not None:
            raise StoreUnavailableError(failure.cause_code, failure.message) from failure.__cause__

    async def _drawn(self, project_id: str, draw: Draw) -> StoreUnavailableError | None:
        """Take what is wanted from the common count; what failed is the answer of everybody who waits for it."""
        try:
            async with asyncio.timeout(self._draw_seconds_max):
                count = await self._quotas.take(project_id, draw.started_at_ms, limit=draw.limit, wanted=draw.wanted)
        except StoreUnavailableError as error:
            return error
        except TimeoutError:
            return _late(self._draw_seconds_max)
        except Exception as error:  # noqa: BLE001 - a store's bug must answer its callers, not hang them
            failure = StoreUnavailableError("store_error", "the store failed")
            failure.__cause__ = error
            return failure
        finally:
            del self._draws[project_id]
        share = self._shares.get(project_id)
        if share is not None:
            self._shares[project_id] = with_drawn(share, draw, count)
        return None


def _late(seconds: float) -> StoreUnavailableError:
    return StoreUnavailableError("quota_late", f"the store did not count within {seconds:g} s")
