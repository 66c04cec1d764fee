"""An event loop in a thread, for faces whose caller blocks."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

ANSWER_SECONDS_MAX: Final = 60.0

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. What fails in it unseen is raised by `close`."""

    def __init__(self, name: str) -> None:
        self.loop: Final = asyncio.new_event_loop()
        self._unseen: Final[list[str]] = []
        self.loop.set_exception_handler(self._note)
        self._thread: Final = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises. TimeoutError where it hangs, with real time as the judge."""
        return self.begin(work).result(ANSWER_SECONDS_MAX)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """`work` under way."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """End the loop; AssertionError if a task or callback failed with nobody looking (SDK-6)."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not self._unseen, f"failed with nobody looking: {self._unseen}"

    def _note(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        self._unseen.append(f"{context.get('message')}: {context.get('exception')!r}")
