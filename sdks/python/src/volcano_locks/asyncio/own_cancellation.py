"""A cancellation of one's own task that can be told from everybody else's, as `asyncio.timeout` does it."""

import asyncio


class Interrupt:
    """At most one cancellation of the task that made it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling_before = task.cancelling()
        self._sent = False

    def send(self) -> None:
        """Cancel it. Harmless when repeated."""
        if not self._sent:
            self._sent = True
            self._task.cancel()

    def take_back(self, error: BaseException | None) -> bool:
        """Undo `send`; whether `error` is nothing but its effect."""
        if not self._sent:
            return False
        others = self._task.uncancel() > self._cancelling_before
        return isinstance(error, asyncio.CancelledError) and not others
