"""Where everything that happens to locks comes together for those who watch (EVENT rules in spec/watching.md).

    hub.live                 false: nobody listens, so nothing need be put together; the hot path's one question
    hub.tell(happenings)     what this node did, after it was committed
    hub.watch(watcher)       gives it what happens from now on, or since an id it saw

A project's events are kept while somebody watches it here and LINGER_MS after, so that whoever lost their connection
resumes without a gap; at most RING_MAX of all projects together. The hub is live meanwhile, and while another node
wants to hear of this one's events.

Nothing here decides about a lease, and telling never waits: it puts into queues that are bounded.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import LockQuery, LockStore, RecordKey
from ..ports.signals import Signals
from ..rules.errors import LockError, StoreUnavailableError
from ..rules.lease import Held
from .event import Happening
from .lease_expiry import LEASES_MAX, Expiries
from .peers import Lines, Neighbours
from .project_feed import Channel
from .subscriber import Watcher

RING_MAX: Final = 20_000
WATCHERS_MAX: Final = 1_000
LINGER_MS: Final = 60_000
LIST_LIMIT: Final = 500
LIST_AGAIN_SECONDS: Final = 1.0
RESETS_APART_MS: Final = 10_000
MISSED: Final = "missed"


class Hub:
    """One a process. `start`, then `close`. All methods are called on the server's event loop."""

    def __init__(self, store: LockStore, clock: Clock, lines: Lines, *, signals: Signals | None = None) -> None:
        self.live = False
        self.watchers = 0
        """How many watch now."""
        self.on_live: Callable[[bool], None] = lambda _live: None
        """Is told when `live` changes."""
        self._store: Final = store
        self.clock: Final = clock
        self._lines: Final = lines
        self._expiries: Final = Expiries(clock, self._give)
        self._neighbours: Final = (
            None
            if signals is None
            else Neighbours(
                signals, clock, lines, on_event=self._take_in, on_missed=self._missed, on_wants=self._set_live
            )
        )
        self._channels: Final[dict[str, Channel]] = {}
        self._order: Final[deque[Channel]] = deque()
        self._to_list: Final[deque[str]] = deque()
        self._listing: asyncio.Task[None] | None = None
        self._forgetting: Timer | None = None
        self._reset_at_ms: int | None = None
        self._resetting: Timer | None = None
        self._closed = False

    @property
    def at_rest(self) -> bool:
        """Whether it knows of all leases that began before somebody watched: for whoever moves the clock."""
        return self._listing is None

    def start(self) -> None:
        """Begin to hear the other nodes."""
        if self._neighbours is not None:
            self._neighbours.start()

    async def close(self) -> None:
        """End every watcher and everything that runs. The signals stay their owner's."""
        self.end_watching()
        for timer in (self._forgetting, self._resetting):
            if timer is not None:
                timer.cancel()
        self._channels.clear()
        self._expiries.close()
        if self._neighbours is not None:
            self._neighbours.close()
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.wait([self._listing])
        self._go_live(False)

    def end_watching(self) -> None:
        """End every watcher and refuse new ones, because the server is stopping."""
        self._closed = True
        for channel in self._channels.values():
            for watcher in channel.watchers:
                watcher.end()

    # --- those who watch ---

    async def watch(self, watcher: Watcher, *, after: str | None = None) -> None:
        """Let it watch from now on; with `after`, first what came since that id, or a reset where that is not known.

        Returns when the other nodes tell too. `leave` is to be called in the end, also where this was cancelled.
        Raises LockError `lock_service_unavailable` where the server stops, or WATCHERS_MAX watch.
        """
        if self._closed or self.watchers >= WATCHERS_MAX:
            why = "this server is stopping" if self._closed else f"{WATCHERS_MAX} streams are open here already"
            raise LockError("lock_service_unavailable", f"{why}: try again in a moment", retry_after_seconds=1)
        channel = self._channels.get(watcher.project_id)
        if channel is None:
            channel = self._channels[watcher.project_id] = Channel(self.clock.now_ms())
            self._set_live()
            self._list(watcher.project_id)
        channel.begin(watcher, after, self.clock.now_ms())
        self.watchers += 1
        if self._neighbours is not None:
            await self._neighbours.heard_by_all()

    def leave(self, watcher: Watcher) -> None:
        """It is gone. Nothing where it never came."""
        watcher.end()
        channel = self._channels.get(watcher.project_id)
        if channel is None or watcher not in channel.watchers:
            return
        channel.leave(watcher, self.clock.now_ms())
        self.watchers -= 1
        self._forget_later()

    # --- what happens ---

    def tell(self, happenings: Iterable[Happening]) -> None:
        """What this node did, in its order, once it is durable. Needed only while `live`."""
        neighbours = self._neighbours
        left_free: dict[RecordKey, bool] = {}
        for happening in happenings:
            self._take_in(happening)
            if neighbours is not None and neighbours.wants_events:
                neighbours.tell_event(happening)
            if happening.fencing_token is not None:
                left_free[happening.lock] = happening.expires_at_ms is None
        if neighbours is not None and neighbours.wants_freed:
            for lock, is_free in left_free.items():
                if is_free:
                    neighbours.tell_freed(lock)

    def line_changed(self, lock: RecordKey) -> None:
        """More or fewer wait for that lock here."""
        if self._neighbours is not None:
            self._neighbours.line_changed(lock)

    def others_wait(self, lock: RecordKey) -> bool:
        """Whether somebody waits for that lock on another node, as far as is known."""
        return self._neighbours is not None and self._neighbours.waiters(lock) > 0

    def waiters(self, lock: RecordKey) -> int:
        """How many wait for that lock, here and, as far as is known, elsewhere."""
        return self._lines.count(lock) + (0 if self._neighbours is None else self._neighbours.waiters(lock))

    # --- inside ---

    def _set_live(self) -> None:
        neighbours = self._neighbours
        if neighbours is not None:
            neighbours.watch(bool(self._channels))
        wanted = neighbours is not None and (neighbours.wants_events or neighbours.wants_freed)
        self._go_live(bool(self._channels) or wanted)

    def _go_live(self, live: bool) -> None:
        if live != self.live:
            self.live = live
            self.on_live(live)

    def _take_in(self, happening: Happening) -> None:
        """Give it to those who watch its project, if it is news."""
        channel = self._channels.get(happening.lock.project_id)
        if channel is not None and self._expiries.note(happening, watched_since_ms=channel.since_ms):
            self._give(happening)

    def _give(self, happening: Happening) -> None:
        channel = self._channels[happening.lock.project_id]
        channel.tell(happening)
        self._order.append(channel)
        if len(self._order) > RING_MAX:
            self._order.popleft().drop_oldest()

    def _forget_later(self) -> None:
        """One timer, for the project that was left first."""
        left_at_ms = [channel.left_at_ms for channel in self._channels.values() if channel.left_at_ms is not None]
        if self._forgetting is None and left_at_ms:
            self._forgetting = self.clock.call_in(min(left_at_ms) + LINGER_MS - self.clock.now_ms(), self._forget)

    def _forget(self) -> None:
        self._forgetting = None
        now_ms = self.clock.now_ms()
        for project_id, channel in list(self._channels.items()):
            if channel.left_at_ms is not None and now_ms >= channel.left_at_ms + LINGER_MS:
                del self._channels[project_id]
                self._expiries.forget(project_id)
        if not self._channels:
            self._order.clear()
        self._set_live()
        self._forget_later()

    def _missed(self) -> None:
        """Events of other nodes may be missing: say so now, but not again and again within RESETS_APART_MS."""
        now_ms = self.clock.now_ms()
        if self._resetting is not None or not self._channels:
            return
        if self._reset_at_ms is not None and now_ms < self._reset_at_ms + RESETS_APART_MS:
            self._resetting = self.clock.call_in(self._reset_at_ms + RESETS_APART_MS - now_ms, self._reset)
        else:
            self._reset()

    def _reset(self) -> None:
        self._resetting = None
        self._reset_at_ms = self.clock.now_ms()
        for project_id, channel in self._channels.items():
            channel.reset(self._reset_at_ms, MISSED)
            self._list(project_id)

    # --- what is held when the watching begins ---

    def _list(self, project_id: str) -> None:
        """Learn of that project's leases, whose end is to be told in time, in the background."""
        if project_id not in self._to_list:
            self._to_list.append(project_id)
        if self._listing is None and not self._closed:
            self._listing = asyncio.get_running_loop().create_task(self._list_all(), name="watched-leases")

    async def _list_all(self) -> None:
        try:
            while self._to_list:
                try:
                    await self._list_one(self._to_list[0])
                    self._to_list.popleft()
                except StoreUnavailableError:
                    await asyncio.sleep(LIST_AGAIN_SECONDS)
        finally:
            self._listing = None

    async def _list_one(self, project_id: str) -> None:
        query = LockQuery(project_id, LIST_LIMIT, held=True)
        while project_id in self._channels and len(self._expiries) < LEASES_MAX:
            page = await self._store.list_locks(query)
            for key, record in page.records:
                if isinstance(record, Held) and project_id in self._channels:
                    self._expiries.listed(RecordKey(project_id, key), record, page.now_ms)
            if page.next_after is None:
                return
            query = query._replace(after=page.next_after)
