"""Cancels the current task in a way that can be distinguished from other cancellations, as `asyncio.timeout` does."""

import asyncio


class OwnCancellation:
    """At most one cancellation of the task that created it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling_before = task.cancelling()
        self._requested = False

    def cancel(self) -> None:
        """Cancel the task. May be repeated."""
        if not self._requested:
            self._requested = True
            self._task.cancel()

    def uncancel(self, error: BaseException | None) -> bool:
        """Undo `cancel`; return whether `error` came from it and from no other cancellation."""
        if not self._requested:
            return False
        others = self._task.uncancel() > self._cancelling_before
        return isinstance(error, asyncio.CancelledError) and not others
