"""Health, readiness, metrics and the API description, for operators and their tools (OPS-1 to OPS-5).

These routes need no credential, so anyone may call them often. Concurrent requests therefore share one call of the
store. Counting held locks takes longer the more there are, so that result is reused for HELD_FRESH_SECONDS.
"""

import asyncio
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..ports.lock_store import LockStore
from ..rules.errors import LockError, StoreUnavailableError
from ..telemetry import Metrics
from .problems import DRAINING_MESSAGE
from .responses import json_response

T = TypeVar("T")

READY_SECONDS_MAX: Final = 5.0
HELD_SECONDS_MAX: Final = 2.0
HELD_FRESH_SECONDS: Final = 1.0
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class HealthRoutes:
    """The four addresses. While `draining`, `/readyz` is 503."""

    def __init__(self, store: LockStore, metrics: Metrics) -> None:
        self.draining = False
        self._ready: Final = _SharedCall(store.ready)
        self._held: Final = _SharedCall(store.count_held, fresh_seconds=HELD_FRESH_SECONDS)
        self._metrics: Final = metrics
        self._openapi: Final = msgspec.Raw(files(__package__).joinpath("openapi.json").read_bytes())

    async def healthz(self, _request: Request) -> Response:
        """200 while the process runs."""
        return json_response({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """200 if the store can write and the server is not stopping; else LockError `lock_service_unavailable`."""
        if self.draining:
            raise LockError("lock_service_unavailable", DRAINING_MESSAGE, retry_after_seconds=1)
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._ready.result()
        except StoreUnavailableError as error:
            message = f"the store cannot answer ({error.cause_code}): run volcano-locks doctor for details"
        except TimeoutError:
            message = f"the store did not answer within {READY_SECONDS_MAX:.0f} s: run volcano-locks doctor for details"
        else:
            return json_response({"status": "ok"})
        raise LockError("lock_service_unavailable", message, retry_after_seconds=1)

    async def metrics(self, _request: Request) -> Response:
        """The Prometheus text format; without `volcano_locks_held` if the store does not answer in time."""
        held: int | None = None
        try:
            async with asyncio.timeout(HELD_SECONDS_MAX):
                held = await self._held.result()
        except (StoreUnavailableError, TimeoutError):
            held = None
        return Response(self._metrics.text(held), headers={"content-type": METRICS_TYPE})

    async def openapi(self, _request: Request) -> Response:
        """spec/openapi.yaml as JSON."""
        return json_response(self._openapi)


class _SharedCall(Generic[T]):
    """A call whose result concurrent callers share, and later callers while it is fresh."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]], *, fresh_seconds: float = 0.0) -> None:
        self._call: Final = call
        self._fresh_seconds: Final = fresh_seconds
        self._task: asyncio.Task[T] | None = None
        self._fresh_until = 0.0

    async def result(self) -> T:
        """The result or the error. Cancelling one caller does not cancel the call."""
        loop = asyncio.get_running_loop()
        if self._task is None or (self._task.done() and loop.time() >= self._fresh_until):
            self._task = loop.create_task(self._call(), name="store-question")
            self._task.add_done_callback(self._finished)
        return await asyncio.shield(self._task)

    def _finished(self, task: "asyncio.Task[T]") -> None:
        """A result stays fresh, an error does not. Reading the error prevents asyncio from logging it."""
        if not task.cancelled() and task.exception() is None:
            self._fresh_until = asyncio.get_running_loop().time() + self._fresh_seconds
