"""Raises the loss of a lease inside the running code: in the main thread by a signal, in a gevent greenlet by a throw.

Limit: code in other threads cannot be interrupted; it checks `guard.lost`.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from volcano_locks.sync.block import LockGuard

LOSS_SIGNAL = signal.SIGUSR2
"""Celery uses SIGUSR1 for its soft time limit."""

_guards: list[LockGuard] = []
"""The guards whose loss interrupts the main thread, outermost first."""


@contextmanager
def interrupted_by_loss(guard: LockGuard) -> Iterator[None]:
    """Raise `LockOwnershipLostError` in the body when the lease is lost, if the body can be interrupted.

    with client.locks.with_lock("report", ttl=30) as guard, interrupted_by_loss(guard):
        write_report()
    """
    if _gevent_patched():
        begin = _throw_into_greenlet
    elif threading.current_thread() is threading.main_thread():
        begin = _signal_main_thread
    else:
        yield
        return
    end = begin(guard)
    try:
        yield
    finally:
        end()


class _LossHandler:
    """The handler of LOSS_SIGNAL: raises the loss of a guard, and passes every other signal on to the one before it."""

    def __init__(self, previous: Any) -> None:
        self._previous = previous

    def __call__(self, number: int, frame: Any) -> None:
        for guard in _guards:
            if guard.lost:
                _guards.remove(guard)  # it raises once, even if the body goes on
                guard.raise_if_lost()
        if callable(self._previous):
            self._previous(number, frame)


def _signal_main_thread(guard: LockGuard) -> Callable[[], None]:
    previous = signal.getsignal(LOSS_SIGNAL)
    if not isinstance(previous, _LossHandler):  # it stays: a late signal must not end the process
        signal.signal(LOSS_SIGNAL, _LossHandler(previous))
    main_thread = threading.get_ident()
    _guards.append(guard)
    forget = guard._hold.on_end(lambda: signal.pthread_kill(main_thread, LOSS_SIGNAL))

    def end() -> None:
        with suppress(ValueError):  # the handler removed it
            _guards.remove(guard)
        forget()

    return end


def _throw_into_greenlet(guard: LockGuard) -> Callable[[], None]:
    import gevent  # noqa: PLC0415 - only in programs that use it

    greenlet, hub, running = gevent.getcurrent(), gevent.get_hub(), [True]

    def throw() -> None:
        if running:
            running.clear()
            greenlet.throw(guard._hold.not_held_error())

    forget = guard._hold.on_end(lambda: hub.loop.run_callback_threadsafe(throw))

    def end() -> None:
        running.clear()
        forget()

    return end


def _gevent_patched() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))
