"""For operators and their tools: health, readiness, metrics and the wire's description. No credential, no secret.

As anybody may ask, the store is asked one question of a kind at a time: who asks meanwhile shares its answer. How
many locks are held costs the store more the more there are, so that answer stands for HELD_FRESH_SECONDS.
"""

import asyncio
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any, Final, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ..ports.lock_store import LockStore
from ..rules.errors import LockError, StoreUnavailableError
from ..telemetry import Metrics
from .problems import DRAINING_MESSAGE

T = TypeVar("T")

READY_SECONDS_MAX: Final = 5.0
HELD_SECONDS_MAX: Final = 2.0
HELD_FRESH_SECONDS: Final = 1.0
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Operations:
    """The four addresses. `draining` turns `/readyz` to 503."""

    def __init__(self, store: LockStore, metrics: Metrics) -> None:
        self.draining = False
        self._ready: Final = _Shared(store.ready)
        self._held: Final = _Shared(store.count_held, fresh_seconds=HELD_FRESH_SECONDS)
        self._metrics: Final = metrics
        self._openapi: Final = files(__package__).joinpath("openapi.json").read_bytes()

    async def healthz(self, _request: Request) -> Response:
        """The process lives."""
        return _json(b'{"status":"ok"}')

    async def readyz(self, _request: Request) -> Response:
        """The store can write now, and this server is not stopping; else LockError `lock_service_unavailable`."""
        if self.draining:
            raise LockError("lock_service_unavailable", DRAINING_MESSAGE, retry_after_seconds=1)
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._ready.answer()
        except StoreUnavailableError as error:
            message = f"the store cannot answer: {error.cause_code}"
        except TimeoutError:
            message = f"the store did not answer within {READY_SECONDS_MAX:.0f} s"
        else:
            return _json(b'{"status":"ok"}')
        raise LockError("lock_service_unavailable", message, retry_after_seconds=1)

    async def metrics(self, _request: Request) -> Response:
        """The Prometheus exposition; without `volcano_locks_held` where the store does not answer in time."""
        held: int | None = None
        try:
            async with asyncio.timeout(HELD_SECONDS_MAX):
                held = await self._held.answer()
        except (StoreUnavailableError, TimeoutError):
            held = None
        return Response(self._metrics.text(held), headers={"content-type": METRICS_TYPE})

    async def openapi(self, _request: Request) -> Response:
        """The wire for machines, as in spec/openapi.yaml."""
        return _json(self._openapi)


class _Shared(Generic[T]):
    """A question to the store that is not asked again while it is being answered, nor while its answer is fresh."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]], *, fresh_seconds: float = 0.0) -> None:
        self._ask: Final = ask
        self._fresh_seconds: Final = fresh_seconds
        self._asking: asyncio.Task[T] | None = None
        self._fresh_until = 0.0

    async def answer(self) -> T:
        """The store's answer or error. Who gives up waiting leaves the question to the others."""
        loop = asyncio.get_running_loop()
        if self._asking is None or (self._asking.done() and loop.time() >= self._fresh_until):
            self._asking = loop.create_task(self._ask(), name="store-question")
            self._asking.add_done_callback(self._heard)
        return await asyncio.shield(self._asking)

    def _heard(self, asking: "asyncio.Task[T]") -> None:
        """An error does not stand, and where nobody waits for it any more it is no surprise."""
        if not asking.cancelled() and asking.exception() is None:
            self._fresh_until = asyncio.get_running_loop().time() + self._fresh_seconds


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
