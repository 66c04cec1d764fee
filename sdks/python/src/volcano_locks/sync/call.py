"""One call of a threaded client: what ends its blocking waits early.

Nothing here takes a lock that an interrupted frame of the same thread may hold, so all of it is safe in signal handlers
and finalizers (SDK-23): `queue.SimpleQueue` is reentrant, `threading.Event` is not.
"""

import _thread
import queue
import sys
import threading
from collections.abc import Callable

from volcano_locks.clock import Clock, Wakeup

STOP_CHECK_SECONDS = 0.2
_SOCKET_MODULES = frozenset({"volcano_locks", "socket", "ssl", "selectors", "gevent", "eventlet"})


class TimeUp(Exception):  # noqa: N818 - it never reaches a caller
    """The time limit has passed on the client's clock."""


class CallCancelled(BaseException):
    """The client was closed, or the caller's stop event was set. Not an `Exception`, so that operations clean up."""


class Signal:
    """A `Wakeup` for one waiting thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._set = False

    def set(self) -> None:
        self._set = True
        self._queue.put(None)

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> None:
        """Block until it is set, or for `seconds`."""
        if not self._set:
            try:
                self._queue.get(timeout=seconds)
            except queue.Empty:
                return


class Call:
    """Belongs to the thread that runs it; another thread may cancel it. A `shielded` call cannot be cancelled."""

    def __init__(self, clock: Clock, stop: threading.Event | None = None, *, shielded: bool = False) -> None:
        self.shielded = shielded
        self.thread_id = threading.get_ident()
        self._clock = clock
        self._stop = stop
        self.cancelled = False
        self._wakeup: Wakeup | None = None

    def cancel(self) -> None:
        """End its current wait, and every further one."""
        if self.shielded:
            return
        self.cancelled = True
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.set()

    def check(self) -> None:
        """Raise CallCancelled if it was cancelled."""
        if self.cancelled or (self._stop is not None and self._stop.is_set()):
            raise CallCancelled

    def remaining(self, until: float) -> float:
        """Real seconds to block before checking again. Raises CallCancelled, and TimeUp if `now() >= until`."""
        self.check()
        seconds = self._clock.timeout(until)
        if seconds <= 0:
            raise TimeUp
        return seconds if self._stop is None else min(seconds, STOP_CHECK_SECONDS)

    def interruptible(self, until: float, wakeup: Wakeup, *, asleep: bool = False) -> Callable[[], None]:
        """Set `wakeup` when the call is cancelled or the clock is moved to `until`; return what ends this."""
        cancel_alarm = self._clock.alarm(until, wakeup, asleep=asleep)
        self._wakeup = wakeup

        def end() -> None:
            self._wakeup = None
            cancel_alarm()

        return end

    def wait(self, until: float, signal: Signal) -> bool:
        """Block until `signal` is set or `now() >= until`; return whether it was set. Raises CallCancelled."""
        end = self.interruptible(until, signal, asleep=True)
        try:
            while not signal.is_set():
                signal.wait(self.remaining(until))
        except TimeUp:
            return False
        finally:
            end()
        self.check()
        return self._clock.timeout(until) > 0


def sleep(clock: Clock, until: float, signal: Signal) -> None:
    """Block until `now() >= until` or `signal` is set."""
    Call(clock, shielded=True).wait(until, signal)


def start_thread(function: Callable[..., None], *args: object) -> int | None:
    """Start a daemon thread and return its identifier; None while the interpreter shuts down, when it would not run.

    It avoids `threading.Thread`: its `start` holds a mutex that a signal handler may need, and breaks if interrupted.
    """
    if sys.is_finalizing():
        return None
    try:
        return _thread.start_new_thread(function, args)
    except RuntimeError as error:
        if "shutdown" in str(error):  # Python 3.12 and later refuse it in exit handlers already
            return None
        raise


def raise_if_from_handler(error: OSError) -> None:
    """Raise `error` again if a signal handler raised it while a socket waited: it is the program's, not the network's.

    A time limit of the program may well be a `TimeoutError`. The frames of its traceback show where it came from.
    """
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _SOCKET_MODULES:
            raise error
        frame = frame.tb_next
