"""Rate limiters: count requests against their project's quota, in this process or with the nodes that share a store.

`admit_now` never waits, so a request whose quota is known costs no turn of the event loop. If a shared limiter has used
up what it drew, `admit_now` returns None and `admit` draws more: one round trip for all waiting requests of the
project. If the store cannot count, `admit` fails: whether the quota is spent is unknown, and lock commands could not be
served anyway (QUOTA-8).

Each node takes the minute from its own clock. If clocks disagree, nodes change minutes at different times; each minute
still has its own limit.
"""

import asyncio
from typing import Final

from ..ports.clock import Clock
from ..ports.lock_store import STORE_SECONDS_MAX
from ..ports.quota_store import QuotaStore
from ..rules.errors import STOPPING, StoreUnavailableError
from ..rules.quota import (
    WINDOW_MS,
    Admission,
    Draw,
    Share,
    Verdict,
    Window,
    admit,
    admit_from,
    admit_within,
    has_quota,
    return_draw,
    share_at,
    with_drawn,
    with_returned,
)

WINDOWS_MAX: Final = 10_000
_ADMITTED: Final = Verdict.ADMITTED  # a member of an enum takes long to look up
DRAW_SECONDS_MAX: Final = STORE_SECONDS_MAX


class LocalRateLimiter:
    """For one process that serves all requests. `may_draw_on_reserve` is for renew and release (QUOTA-5)."""

    def __init__(self, clock: Clock, *, owner_reserve: bool) -> None:
        self._clock: Final = clock
        self._owner_reserve: Final = owner_reserve
        self._windows: dict[str, Window] = {}

    def admit_now(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission:
        """Count one request of a project with this limit (0: none)."""
        now_ms = self._clock.now_ms()
        window = self._windows.get(project_id) or self._new_window(project_id, now_ms)
        return admit(window, now_ms, limit=limit, may_draw_on_reserve=self._owner_reserve and may_draw_on_reserve)

    def has_quota(self, project_id: str, limit: int) -> bool:
        """Whether a request could be counted now within the quota."""
        window = self._windows.get(project_id)
        return window is None or has_quota(window, self._clock.now_ms(), limit=limit)

    def admit_within_quota(self, project_id: str, limit: int) -> Admission | None:
        """Count one request within the quota. If the quota is spent, returns None and counts nothing."""
        now_ms = self._clock.now_ms()
        window = self._windows.get(project_id) or self._new_window(project_id, now_ms)
        return admit_within(window, now_ms, limit=limit)

    async def admit(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission:
        return self.admit_now(project_id, limit, may_draw_on_reserve=may_draw_on_reserve)

    def refund(self, project_id: str, admission: Admission) -> None:
        """Return to the reserve what was drawn for a client that proved not to be the owner."""
        window = self._windows.get(project_id)
        if window is not None:
            return_draw(window, admission)

    async def close(self) -> None:
        return

    def _new_window(self, project_id: str, now_ms: int) -> Window:
        """A window for a project that has none; forgets those of earlier minutes if there are too many."""
        if len(self._windows) >= WINDOWS_MAX:
            self._windows = {
                known: kept for known, kept in self._windows.items() if now_ms - kept.started_at_ms < WINDOW_MS
            }
        self._windows[project_id] = window = Window()
        return window


class SharedRateLimiter:
    """For several nodes that serve a project's requests; each counts from the share that it drew."""

    def __init__(
        self, quotas: QuotaStore, clock: Clock, *, owner_reserve: bool, draw_seconds_max: float = DRAW_SECONDS_MAX
    ) -> None:
        self._quotas: Final = quotas
        self._clock: Final = clock
        self._owner_reserve: Final = owner_reserve
        self._draw_seconds_max: Final = draw_seconds_max
        self._shares: dict[str, Share] = {}
        self._draws: Final[dict[str, asyncio.Task[StoreUnavailableError | None]]] = {}
        self._waiting_counts: Final[dict[str, int]] = {}
        self._closed = False

    def admit_now(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission | None:
        """Count one request; None if `admit` has to draw for it."""
        admission = self._count(project_id, limit, may_draw_on_reserve)
        return None if isinstance(admission, Draw) else admission

    def has_quota(self, project_id: str, limit: int) -> bool:
        """Whether a request could be counted now, from what was drawn."""
        return limit == 0 or share_at(self._shares.get(project_id), self._clock.now_ms()).left > 0

    def admit_within_quota(self, project_id: str, limit: int) -> Admission | None:
        """Count one request from what was drawn. If nothing is left of it, returns None and counts nothing."""
        admission = self.admit_now(project_id, limit, may_draw_on_reserve=False)
        return admission if admission is not None and admission[0] is _ADMITTED else None

    async def admit(self, project_id: str, limit: int, *, may_draw_on_reserve: bool) -> Admission:
        """Count one request, and draw if necessary. Raises StoreUnavailableError if it was not counted."""
        self._waiting_counts[project_id] = self._waiting_counts.get(project_id, 0) + 1
        try:
            async with asyncio.timeout(self._draw_seconds_max):
                while isinstance(admission := self._count(project_id, limit, may_draw_on_reserve), Draw):
                    await self._draw(project_id, admission)
        except TimeoutError:
            raise _draw_late(self._draw_seconds_max) from None
        finally:
            self._waiting_counts[project_id] -= 1
            if not self._waiting_counts[project_id]:
                del self._waiting_counts[project_id]
        return admission

    def refund(self, project_id: str, admission: Admission) -> None:
        share = self._shares.get(project_id)
        if share is not None:
            self._shares[project_id] = with_returned(share, admission)

    async def close(self) -> None:
        self._closed = True
        draws = list(self._draws.values())
        for draw in draws:
            draw.cancel()
        if draws:
            await asyncio.wait(draws)

    def _count(self, project_id: str, limit: int, may_draw_on_reserve: bool) -> Admission | Draw:
        now_ms = self._clock.now_ms()
        share, admission = admit_from(
            self._shares.get(project_id),
            now_ms,
            limit=limit,
            may_draw_on_reserve=self._owner_reserve and may_draw_on_reserve,
        )
        if project_id not in self._shares and len(self._shares) >= WINDOWS_MAX:
            self._shares = {
                known: kept for known, kept in self._shares.items() if now_ms - kept.started_at_ms < WINDOW_MS
            }
        self._shares[project_id] = share
        return admission

    async def _draw(self, project_id: str, draw: Draw) -> None:
        """Draw, or await the draw in progress: one per project at a time, for all requests that wait by then."""
        if self._closed:
            raise StoreUnavailableError(*STOPPING)
        task = self._draws.get(project_id)
        if task is None:
            wanted = max(draw.wanted, self._waiting_counts[project_id])
            task = asyncio.create_task(self._take(project_id, draw._replace(wanted=wanted)), name="quota-draw")
            self._draws[project_id] = task
        try:
            failure = await asyncio.shield(task)  # a cancelled request leaves the draw to the others
        except asyncio.CancelledError:
            if task.cancelled():
                raise StoreUnavailableError(*STOPPING) from None
            raise
        if failure is not None:
            raise StoreUnavailableError(failure.cause_code, failure.message) from failure.__cause__

    async def _take(self, project_id: str, draw: Draw) -> StoreUnavailableError | None:
        """Take from the shared count; an error is returned to every request that waits for this draw."""
        try:
            async with asyncio.timeout(self._draw_seconds_max):
                count = await self._quotas.take(project_id, draw.started_at_ms, limit=draw.limit, wanted=draw.wanted)
        except StoreUnavailableError as error:
            return error
        except TimeoutError:
            return _draw_late(self._draw_seconds_max)
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


RateLimiter = LocalRateLimiter | SharedRateLimiter


def _draw_late(seconds: float) -> StoreUnavailableError:
    return StoreUnavailableError("quota_late", f"the store did not count within {seconds:g} s")
