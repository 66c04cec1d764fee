"""`asyncio.run` for commands, which people interrupt at any moment.

An interrupt ends the work and nothing else: while the event loop is being made or closed it waits, so that no loop
is left half made and no work is made and never begun, of which Python would complain when the process ends.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
_INTERRUPT: Final = (signal.SIGINT,)


def run_to_end(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """What `work` returns or raises. KeyboardInterrupt where it was interrupted, once it has cleaned up."""
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
