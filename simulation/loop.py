"""The event loop of one simulated process. It runs on the steady clock of its machine, one turn at a time.

A turn runs what is ready and takes some microseconds, so the turns of processes and the messages between them
interleave in many ways. A paused process has no turns; what became due meanwhile runs in its next one. A killed process
has none ever again: no `finally` and no callback of it runs.

The loop has handles and a queue of timers of its own, which cost less than those of asyncio.
"""

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any, Final

from .clocks import Machine
from .world import World

TURN_SECONDS_MAX: Final = 0.000_2


class _Handle:
    """A scheduled callback, with what the product uses of `asyncio.Handle` and `asyncio.TimerHandle`."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "when_seconds")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: Context | None, when_seconds: float) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.when_seconds = when_seconds
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args, self.context = None, (), None

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_seconds


class ProcessLoop(asyncio.BaseEventLoop):
    """`on_error` gets what no code of the process handled."""

    def __init__(
        self, world: World, machine: Machine, random: Random, on_error: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__()
        self.paused_until = 0.0
        self.is_killed = False
        self.time: Final = machine.up_seconds  # one call instead of two
        self._world: Final = world
        self._machine: Final = machine
        self._draw: Final = random.random
        self._ready_handles: Final[deque[_Handle]] = deque()
        self._timers: Final[list[tuple[float, int, _Handle]]] = []
        self._timer_count = 0
        self._turn_at = inf
        """When the next turn is; an event of another instant is stale."""
        self._timer_event_at = inf
        """When the latest event for a timer is, which need not be scheduled again after each turn before it."""
        self._is_in_turn = False
        self.set_exception_handler(lambda _loop, context: None if self.is_killed else on_error(context))

    def kill(self) -> None:
        """End the process."""
        self.is_killed = True

    def forget(self) -> None:
        """Drop what is scheduled, after the run."""
        self._ready_handles.clear()
        self._timers.clear()
        self.close()

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self, name="task" if name is None else str(name), context=context)
        if self.is_killed:
            _end(task)
        return task

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def call_soon(  # type: ignore[override]  # any arguments
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        if context is None and self._is_in_turn:
            context = copy_context()
        handle = _Handle(callback, args, context, 0.0)
        if not self.is_killed:
            self._ready_handles.append(handle)
            if not self._is_in_turn:
                self._wake_at(self._world.now + self._draw() * TURN_SECONDS_MAX)
        return handle

    def call_later(  # type: ignore[override]  # any arguments
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # any arguments
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        timer = _Handle(callback, args, copy_context() if context is None else context, when)
        if not self.is_killed:
            self._timer_count += 1
            heappush(self._timers, (when, self._timer_count, timer))
            if not self._is_in_turn:
                self._wake_at(self._machine.true_time_of(when))
        return timer

    def _wake_at(self, when: float) -> None:
        if when < self._turn_at:
            self._turn_at = when
            self._world.at(when, self._turn, when)

    def _wake_for_timer(self) -> None:
        when = self._machine.true_time_of(self._timers[0][0])
        if when < self._turn_at:
            self._turn_at = when
            if when != self._timer_event_at:
                self._timer_event_at = when
                self._world.at(when, self._turn, when)

    def _make_due_timers_ready(self) -> None:
        ready, timers, machine = self._ready_handles, self._timers, self._machine
        due = (self._world.now - machine.booted_at) * machine.rate + 1e-6
        while timers and (timers[0][0] <= due or timers[0][2].is_cancelled):
            timer = heappop(timers)[2]
            if not timer.is_cancelled:
                ready.append(timer)

    def _turn(self, when: float) -> None:
        if when == self._timer_event_at:
            self._timer_event_at = inf
        if when != self._turn_at or self.is_killed:
            return
        world, ready, timers = self._world, self._ready_handles, self._timers
        self._turn_at = inf
        if world.now < self.paused_until:
            self._wake_at(self.paused_until)
            return
        if timers:
            self._make_due_timers_ready()
        if ready and world.running_loop is not self:  # a system call
            world.running_loop = self
            events._set_running_loop(self)
        self._is_in_turn = True
        for _ in range(len(ready)):
            handle = ready.popleft()
            try:
                if handle.context is not None:
                    handle.context.run(handle.callback, *handle.args)
                elif not handle.is_cancelled:
                    handle.callback(*handle.args)
            except Exception as error:  # noqa: BLE001 - as an event loop does
                self.call_exception_handler({"message": "exception in a callback", "exception": error})
            if self.is_killed:
                return
        self._is_in_turn = False
        if ready:
            self._wake_at(world.now + self._draw() * TURN_SECONDS_MAX)
        elif timers:
            self._wake_for_timer()


def bury(loops: Iterable[ProcessLoop]) -> None:
    """End the tasks of killed processes, after the run: their `finally` blocks run now, and reach nothing."""
    tasks: dict[object, list[asyncio.Task[Any]]] = {loop: [] for loop in loops}
    known: Iterable[asyncio.Task[Any]] = asyncio.tasks._all_tasks  # type: ignore[attr-defined]
    for task in list(known):  # `all_tasks` goes through the tasks of all loops for each loop
        if not task.done() and task.get_loop() in tasks:
            tasks[task.get_loop()].append(task)
    for loop in loops:
        events._set_running_loop(loop)
        try:
            for task in tasks[loop]:
                _end(task)
        finally:
            events._set_running_loop(None)
        loop.forget()


def _end(task: "asyncio.Task[Any]") -> None:
    """End a task of a killed process without a word."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with suppress(Exception):
        task.get_coro().close()
