"""`asyncio.run` for commands, safe against an interrupt at any moment.

SIGINT is blocked while the event loop is created and closed. So no loop stays half created, and no coroutine is
created and never awaited; Python would print a warning for either when the process ends.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
_INTERRUPT: Final = (signal.SIGINT,)


def run_to_end(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Returns or raises what `work` does. Raises KeyboardInterrupt after an interrupt, once `work` has cleaned up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)

    async def interruptible() -> Result:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            return await work()
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)

    try:
        with asyncio.Runner() as runner:
            return runner.run(interruptible())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
