"""An event loop in a thread, for targets whose caller blocks."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

RESULT_SECONDS_MAX: Final = 60.0

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. `close` raises errors that no caller has seen."""

    def __init__(self, name: str) -> None:
        self.loop: Final = asyncio.new_event_loop()
        self._unhandled: Final[list[str]] = []
        self.loop.set_exception_handler(self._record)
        self._thread: Final = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises TimeoutError if it hangs in real time."""
        return self.begin(work).result(RESULT_SECONDS_MAX)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """End the loop. AssertionError if a task or callback failed without being awaited (SDK-6)."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not self._unhandled, f"unhandled errors in the event loop: {self._unhandled}"

    def _record(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        self._unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")
