"""Health, readiness, metrics and the API description, for operators and their tools (OPS-1 to OPS-5).

Except the metrics, if a metrics token is configured (OPS-15), these routes need no credential, so anyone may call them
often. Concurrent readiness requests therefore share one call
of the store, and scrapes share a count of the held locks (see `held_count`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..ports.clock import Clock
from ..ports.lock_store import STORE_SECONDS_MAX, LockStore, TakeoverHold
from ..rules.clock_history import HOLD_MS_MAX
from ..rules.errors import STOPPING, LockError, StoreUnavailableError
from ..telemetry import Log, Metrics
from .auth import Authenticator
from .codec import AUTHORIZATION, FIELDS_IN_SCOPE, instant
from .held_count import HeldCount
from .problems import DRAINING_MESSAGE
from .readiness import Readiness
from .responses import json_response

T = TypeVar("T")

READY_SECONDS_MAX: Final = STORE_SECONDS_MAX
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class HealthRoutes:
    """The four addresses. While `draining`, `/readyz` is 503."""

    def __init__(
        self, store: LockStore, metrics: Metrics, clock: Clock, log: Log, authenticator: Authenticator
    ) -> None:
        self.draining = False
        self._store: Final = store
        self._ready: Final = Readiness(store.ready, clock)
        self._held: Final = HeldCount(store.count_held, clock, log)
        self._metrics: Final = metrics
        self._authenticator: Final = authenticator
        self._openapi: Final = msgspec.Raw(files(__package__).joinpath("openapi.json").read_bytes())

    async def healthz(self, _request: Request) -> Response:
        """200 while the process runs."""
        return json_response({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """200 if an acquire would succeed and the server is not stopping, else LockError `lock_service_unavailable`."""
        if self.draining:
            raise LockError("lock_service_unavailable", DRAINING_MESSAGE, retry_after_seconds=1)
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._ready.result()
        except StoreUnavailableError as error:
            message = f"the store cannot answer ({error.cause_code}): the server's log says what to do"
        except TimeoutError:
            message = f"the store did not answer within {READY_SECONDS_MAX:g} s: run volcano-locks doctor for details"
        else:
            return json_response({"status": "ok", **self._held_takeovers()})
        raise LockError("lock_service_unavailable", message, retry_after_seconds=1)

    async def summary(self) -> dict[str, object]:
        """What `/readyz` would say, and the cause if the store cannot answer."""
        cause = STOPPING[0] if self.draining else None
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._ready.result()
        except StoreUnavailableError as error:
            cause = error.cause_code
        except TimeoutError:
            cause = "store_late"
        held = self._held_takeovers().get("takeovers_held")
        return {"status": "ok" if cause is None else "unavailable", "cause": cause, "takeovers_held": held}

    async def probe_store(self) -> None:
        """Wait for the probe that all share, however long it takes. Raises StoreUnavailableError."""
        await self._ready.result()

    def _held_takeovers(self) -> dict[str, object]:
        """The field about a hold (LEASE-17), if there is one. The server is ready: only takeovers wait."""
        hold = self._store.takeover_hold()
        if hold is None:
            return {}
        seconds = -(-hold.left_ms // 1_000)
        return {"takeovers_held": {"until": instant(hold.until_ms), "seconds": seconds, "why": hold_reason(hold)}}

    async def metrics(self, request: Request) -> Response:
        """The Prometheus text format; without `volcano_locks_held` if that is unknown."""
        await self._authenticator.require_scraper(request.scope[FIELDS_IN_SCOPE].get(AUTHORIZATION))
        return Response(self._metrics.text(await self._held.newest()), headers={"content-type": METRICS_TYPE})

    async def openapi(self, _request: Request) -> Response:
        """spec/openapi.yaml as JSON."""
        return json_response(self._openapi)

    async def stop_counting(self) -> None:
        """End the count in the background; later scrapes get the newest result."""
        await self._held.close()


def hold_reason(hold: TakeoverHold) -> str:
    """Why takeovers are held, for operators."""
    cause = f"the store's clock moved ahead by {hold.jumped_ms / 1_000:.1f} s that are not known to have passed"
    if hold.jumped_ms >= hold.until_ms - HOLD_MS_MAX:  # all time since 1970
        cause = "what was known about the store's clock was lost, so no time is known to have passed"
    return f"{cause}: leases from before that are taken over only when the time that they had left has passed"


class _SharedCall(Generic[T]):
    """A call whose result concurrent callers share."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._call: Final = call
        self._task: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """The result or the error. Cancelling one caller does not cancel the call."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._call(), name="store-question")
            self._task.add_done_callback(_read_error)
        return await asyncio.shield(self._task)


def _read_error(task: "asyncio.Task[Any]") -> None:
    """Reading the error prevents asyncio from logging it."""
    if not task.cancelled():
        task.exception()
