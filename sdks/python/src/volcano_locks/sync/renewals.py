"""Renews the held locks of a threaded client in daemon threads.

One thread at a time leads: it waits for the next renewal that is due. Before it performs the renewal, it gives up the
lead, and an idle thread takes it. If other locks wait and no thread is idle, it starts one. So a single lock needs one
thread, and more run only while renewals overlap. A thread that is idle for a while ends. None is started while the
interpreter shuts down.

`add` may be called by a signal handler or finalizer, so it takes no lock. It appends to a deque, and then reads
attributes that the leader sets before it checks that deque.
"""

import contextlib
import heapq
import itertools
import os
import queue
import threading
import time
import weakref
from collections import deque
from math import inf

from volcano_locks.clock import Clock, SystemClock
from volcano_locks.errors import VolcanoError
from volcano_locks.holding.block import RENEWAL_END_SECONDS_MAX, Block
from volcano_locks.holding.hold import BlockLeft, Hold
from volcano_locks.protocol.renewal_plan import Lost, Renew, Wait
from volcano_locks.sync.call import Call, Signal, start_thread
from volcano_locks.sync.driver import Driver, StoppedError

RENEWAL_THREADS_MAX = 100
IDLE_SECONDS_MAX = 30.0
INBOX_CHECK_SECONDS = 0.5
"""The leader looks for new locks this often by itself, so adding one need not wake it."""


class Entry:
    """One held lock. Without its `owner` it lapses. `call` is the renewal under way, if any."""

    def __init__(self, block: Block, hold: Hold, owner: object) -> None:
        self.block = block
        self.hold = hold
        self.owner = weakref.ref(owner)
        self.call: Call | None = None
        self.done: Signal | None = None

    def end_renewal(self, *, let_finish: bool) -> None:
        """Cancel the renewal under way, unless it shall finish, and return at its end (SDK-5). Bounded in time."""
        self.done = done = Signal()
        call = self.call
        if call is not None:
            if not let_finish:
                call.cancel()
            done.wait(RENEWAL_END_SECONDS_MAX)


class Renewals:
    """The renewals of one client."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._polls = isinstance(clock, SystemClock)
        self._closed = False
        self._reset()

    def add(self, block: Block, hold: Hold, owner: object) -> Entry:
        """Renew `hold` until it ends or `owner` is dropped."""
        if self._pid != os.getpid():
            self._reset()
        entry = Entry(block, hold, owner)
        self._schedule(entry)
        return entry

    def close(self) -> None:
        """End the threads. Holds are no longer renewed."""
        self._closed = True
        if self._pid == os.getpid() and (leader_sleeps := self._sleep) is not None:
            leader_sleeps[1].set()

    def _reset(self) -> None:
        self._inbox: deque[tuple[float, int, Entry]] = deque()
        self._numbers = itertools.count()
        self._threads: set[int] = set()
        self._idle: set[int] = set()
        self._lead: queue.SimpleQueue[list[tuple[float, int, Entry]]] = queue.SimpleQueue()
        self._leader: int | None = None  # the thread that has the lead, known a moment after it took it
        self._lead.put([])
        self._sleep: tuple[float, Signal] | None = None
        self._pid = os.getpid()

    def _schedule(self, entry: Entry) -> None:
        action = entry.hold.next_action()
        if isinstance(action, (BlockLeft, Lost)):
            return
        due = action.until if isinstance(action, Wait) else self._clock.now()
        self._inbox.append((due, next(self._numbers), entry))
        if not self._threads:
            self._start()
        elif (leader_sleeps := self._sleep) is not None and due < leader_sleeps[0]:
            leader_sleeps[1].set()

    def _start(self) -> None:
        ended: list[None] = []
        identifier = start_thread(self._work, ended)
        if identifier is not None:
            self._threads.add(identifier)  # it adds itself too, but perhaps only after another lock was added
            if ended:
                self._threads.discard(identifier)
            self._clock.watch(identifier, lambda: bool(ended))

    def _work(self, ended: list[None]) -> None:
        me = threading.get_ident()
        self._threads.add(me)
        try:
            while (heap := self._take_lead(me)) is not None:
                entry = self._next_due(heap)
                others_wait = bool(heap or self._inbox)
                self._leader = None
                self._lead.put(heap)
                if entry is not None:
                    if others_wait and not self._idle and len(self._threads) < RENEWAL_THREADS_MAX:
                        with contextlib.suppress(RuntimeError):  # no thread is to be had: this one renews them all
                            self._start()
                    self._renew(entry)
                    continue
                self._threads.discard(me)
                if self._closed or self._threads or not self._inbox:
                    return
                self._threads.add(me)  # a lock was added in between, without a thread of its own
        finally:
            ended.append(None)
            self._threads.discard(me)

    def _take_lead(self, me: int) -> "list[tuple[float, int, Entry]] | None":
        """Wait for the lead; None if this thread has waited for it too long."""
        wakeup = _LeadFree(self, me)
        self._idle.add(me)
        cancel_alarm = self._clock.alarm(inf, wakeup, asleep=True)
        try:
            while True:
                try:
                    heap = self._lead.get(timeout=IDLE_SECONDS_MAX)
                except queue.Empty:
                    self._threads.discard(me)
                    self._idle.discard(me)
                    if self._lead.empty():
                        return None
                    self._threads.add(me)
                else:
                    self._leader = me
                    return heap
        finally:
            self._idle.discard(me)
            cancel_alarm()

    def _next_due(self, heap: "list[tuple[float, int, Entry]]") -> Entry | None:
        """Sleep until a renewal is due, and return it; None after a time without any lock, and after `close`."""
        idle_since = time.monotonic()
        while not self._closed:
            signal, now = Signal(), self._clock.now()
            looks_at = now + INBOX_CHECK_SECONDS if self._polls else inf
            wake_at = min(heap[0][0], looks_at) if heap else looks_at
            self._sleep = wake_at, signal  # from here on, `add` wakes this thread
            if self._inbox:
                self._empty_inbox(heap)
            elif heap and heap[0][0] <= now:
                self._sleep = None
                return heapq.heappop(heap)[2]
            elif not heap and time.monotonic() - idle_since >= IDLE_SECONDS_MAX:
                break
            else:
                cancel_alarm = self._clock.alarm(wake_at, signal, asleep=True)
                signal.wait(self._clock.timeout(wake_at))
                cancel_alarm()
        self._sleep = None
        return None

    def _empty_inbox(self, heap: "list[tuple[float, int, Entry]]") -> None:
        while self._inbox:
            scheduled = self._inbox.popleft()
            if not isinstance(scheduled[2].hold.next_action(), (BlockLeft, Lost)):
                heapq.heappush(heap, scheduled)

    def _renew(self, entry: Entry) -> None:
        """Perform the hold's next action, if any is due, and schedule the one after it."""
        hold = entry.hold
        if entry.owner() is None:
            hold.leave()
            return
        entry.call = call = Call(self._clock)  # from here on, leaving the block waits for this renewal
        try:
            action = hold.next_action()
            if isinstance(action, Renew):
                self._driver.run(entry.block.renew(action.timeout_seconds), call=call)
        except (VolcanoError, StoppedError):  # the client was closed, or the block left
            return
        finally:
            entry.call = None
            if entry.done is not None:
                entry.done.set()
        self._schedule(entry)


class _LeadFree:
    """The `Wakeup` of a thread that waits for the lead. A thread that has just taken it is awake."""

    def __init__(self, renewals: Renewals, thread: int) -> None:
        self._renewals = renewals
        self._thread = thread

    def set(self) -> None:
        """No clock ends this wait."""

    def is_set(self) -> bool:
        return self._renewals._leader in (None, self._thread)
