"""The event hub: publishes the lock events of this node and of its peers to subscribers (spec/watching.md).

    hub.live                    false: no event is wanted, so batches record none. The hot path checks only this
    hub.publish(events)         events of this node, after their commit
    hub.subscribe(subscriber)   sends it the events from now on, or since an id

A project has a feed while it has subscribers and LINGER_MS after, so that a client resumes without a gap. The hub is
live while a feed exists or a peer wants this node's events. Subscribers, events that are kept, and leases whose expiry
is watched are bounded by budgets of the node, of which each project has a share (HTTP-32). Subscribers of a project of
which not all leases are watched get resets (`unwatched`).

The hub decides nothing about leases. Publishing never waits: all queues are bounded.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import LockQuery, LockStore, RecordKey
from ..ports.signals import Signals
from ..rules.errors import LockError, StoreUnavailableError
from ..rules.lease import Held
from ..rules.shares import Budgets, past_share
from .event import LockEvent
from .lease_expiry import LeaseExpiries
from .peers import LocalQueues, Peers
from .project_feed import ProjectFeed
from .stream_turns import STREAMS_AT_ONCE, StreamTurns
from .subscriber import Subscriber
from .unwatched import RESETS_APART_MS, UnwatchedProjects

LINGER_MS: Final = 60_000
LIST_LIMIT: Final = 500
LIST_RETRY_SECONDS: Final = 1.0
MISSED: Final = "missed"


class EventHub:
    """One per process. `start`, then `close`. All methods are called on the server's event loop."""

    def __init__(
        self,
        store: LockStore,
        clock: Clock,
        queues: LocalQueues,
        *,
        signals: Signals | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self.live = False
        budgets = budgets or Budgets()
        self._streams: Final = budgets.streams
        self._kept: Final = budgets.kept_events
        self._watched: Final = budgets.watched_leases
        self.on_live: Callable[[bool], None] = lambda _live: None
        """Called when `live` changes."""
        self._store: Final = store
        self.clock: Final = clock
        self._queues: Final = queues
        self._unwatched: Final = UnwatchedProjects(
            clock, budgets.watched_leases, reset=self._reset_feed, list_again=self._list
        )
        self._expiries: Final = LeaseExpiries(
            clock,
            budgets.watched_leases,
            budgets.ended_leases,
            on_expired=self._publish_to_feed,
            on_unwatched=self._unwatched.note,
        )
        self._peers: Final = (
            None
            if signals is None
            else Peers(
                signals, clock, queues, on_event=self._take_in, on_missed=self._missed, on_wanted=self._update_live
            )
        )
        self._feeds: Final[dict[str, ProjectFeed]] = {}
        self._turns: Final = StreamTurns(clock, self._wake_some)
        self._to_list: Final[dict[str, LockQuery]] = {}  # the next page of each project to list
        self._listing: asyncio.Task[None] | None = None
        self._forget_timer: Timer | None = None
        self._reset_at_ms: int | None = None
        self._reset_timer: Timer | None = None
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether the list of leases is read for each new feed. For tests that move the clock."""
        return self._listing is None

    @property
    def subscriber_count(self) -> int:
        return self._streams.used

    def start(self) -> None:
        """Begin to receive from peers."""
        if self._peers is not None:
            self._peers.start()

    async def close(self) -> None:
        """End all subscribers, timers and tasks. The owner of the signals closes them."""
        self.end_subscribers()
        for timer in (self._forget_timer, self._reset_timer):
            if timer is not None:
                timer.cancel()
        self._feeds.clear()
        self._expiries.close()
        self._unwatched.close()
        self._turns.close()
        if self._peers is not None:
            self._peers.close()
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.wait([self._listing])
        self._set_live(False)

    def end_subscribers(self) -> None:
        """End all subscribers and refuse new ones, because the server is stopping."""
        self._closed = True
        for feed in self._feeds.values():
            for subscriber in feed.subscribers:
                subscriber.end()

    # --- subscribers ---

    async def subscribe(self, subscriber: Subscriber, *, after: str | None = None) -> None:
        """Queue the events from now on; with `after`, first those since that id, or a reset if it is unknown.

        Returns when peers send their events too. The caller must then call `unsubscribe`, even if this was cancelled.
        Raises LockError `too_many_streams` past the project's share, and `lock_service_unavailable` if the server stops
        or its budget of subscribers is used up.
        """
        excess = None if self._closed else self._streams.take(subscriber.project_id)
        if excess == "share":
            raise past_share("too_many_streams", "event streams")
        if self._closed or excess is not None:
            why = "this server is stopping" if self._closed else f"{self._streams.limit} event streams are open here"
            raise LockError("lock_service_unavailable", f"{why}: retry in a moment", retry_after_seconds=1)
        feed = self._feeds.get(subscriber.project_id)
        if feed is None:
            feed = self._feeds[subscriber.project_id] = ProjectFeed(self.clock.now_ms())
            self._update_live()
            self._list(subscriber.project_id)
        feed.add(subscriber, after, self.clock.now_ms())
        if self._peers is not None:
            await self._peers.interest_settled()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Has no effect on a subscriber that was not added."""
        subscriber.end()
        feed = self._feeds.get(subscriber.project_id)
        if feed is None or subscriber not in feed.subscribers:
            return
        feed.remove(subscriber, self.clock.now_ms())
        self._streams.give_back(subscriber.project_id)
        self._set_forget_timer()

    # --- events ---

    def publish(self, events: Iterable[LockEvent]) -> None:
        """Events of this node, in order, after their commit. Needed only while `live`."""
        peers = self._peers
        left_free: dict[RecordKey, bool] = {}
        for event in events:
            self._take_in(event)
            if peers is not None and peers.wanted.events:
                peers.send_event(event)
            if event.fencing_token is not None:
                left_free[event.lock] = event.expires_at_ms is None
        if peers is not None and peers.wanted.freed:
            for lock, is_free in left_free.items():
                if is_free:
                    peers.send_freed(lock)

    def queue_changed(self, lock: RecordKey) -> None:
        """The wait queue of that lock grew or shrank."""
        if self._peers is not None:
            self._peers.queue_changed(lock)

    def token_withdrawn(self, lock: RecordKey) -> None:
        """An owner token was released that holds no lease: it may wait for that lock on other nodes (WAIT-13)."""
        if self._peers is not None and self.others_wait(lock):
            self._peers.send_freed(lock)

    def others_wait(self, lock: RecordKey) -> bool:
        """Whether requests are known to wait for that lock on other nodes."""
        return self._peers is not None and self._peers.waiters(lock) > 0

    def waiters(self, lock: RecordKey) -> int:
        """How many requests wait for that lock here, plus the known ones on other nodes."""
        return self._queues.count(lock) + (0 if self._peers is None else self._peers.waiters(lock))

    # --- inside ---

    def _update_live(self) -> None:
        peers = self._peers
        if peers is not None:
            peers.set_subscribed(bool(self._feeds))
        is_wanted = peers is not None and any(peers.wanted)
        self._set_live(bool(self._feeds) or is_wanted)

    def _set_live(self, live: bool) -> None:
        if live != self.live:
            self.live = live
            self.on_live(live)

    def _take_in(self, event: LockEvent) -> None:
        """Publish an event of this node or a peer, if it is news to its project's feed."""
        feed = self._feeds.get(event.lock.project_id)
        if feed is not None and self._expiries.note(event, since_ms=feed.since_ms):
            self._publish_to_feed(event)

    def _publish_to_feed(self, event: LockEvent) -> None:
        project_id = event.lock.project_id
        while (displaced := self._kept.displaced(project_id)) is not None:
            self._feeds[displaced].drop_oldest()
            self._kept.give_back(displaced)
        self._kept.add(project_id)
        in_turns = self._streams.used_by(project_id) > STREAMS_AT_ONCE
        self._feeds[project_id].publish(event, in_turns=in_turns)
        if in_turns:
            self._turns.note(project_id)

    def _wake_some(self, project_id: str, most: int) -> bool:
        feed = self._feeds.get(project_id)
        return feed is not None and feed.wake_some(most)

    def _set_forget_timer(self) -> None:
        """One timer, for the feed that became idle first."""
        idle_since_ms = [feed.idle_since_ms for feed in self._feeds.values() if feed.idle_since_ms is not None]
        if self._forget_timer is None and idle_since_ms:
            delay_ms = min(idle_since_ms) + LINGER_MS - self.clock.now_ms()
            self._forget_timer = self.clock.call_in(delay_ms, self._forget_idle)

    def _forget_idle(self) -> None:
        self._forget_timer = None
        now_ms = self.clock.now_ms()
        for project_id, feed in list(self._feeds.items()):
            if feed.idle_since_ms is not None and now_ms >= feed.idle_since_ms + LINGER_MS:
                del self._feeds[project_id]
                self._kept.give_back(project_id, feed.kept_count)
                self._expiries.forget(project_id)
                self._unwatched.forget(project_id)
        self._update_live()
        self._set_forget_timer()

    def _missed(self) -> None:
        """Events of peers may be missing: reset the feeds, at most every RESETS_APART_MS."""
        now_ms = self.clock.now_ms()
        if self._reset_timer is not None or not self._feeds:
            return
        if self._reset_at_ms is not None and now_ms < self._reset_at_ms + RESETS_APART_MS:
            self._reset_timer = self.clock.call_in(self._reset_at_ms + RESETS_APART_MS - now_ms, self._reset)
        else:
            self._reset()

    def _reset(self) -> None:
        self._reset_timer = None
        self._reset_at_ms = self.clock.now_ms()
        for project_id in self._feeds:
            self._reset_feed(project_id)
            self._list(project_id)

    def _reset_feed(self, project_id: str) -> None:
        feed = self._feeds[project_id]
        self._kept.give_back(project_id, feed.kept_count)
        feed.reset(self.clock.now_ms(), MISSED)

    # --- leases from before a feed began ---

    def _list(self, project_id: str) -> None:
        """List that project's leases in the background, to publish their ends in time. Projects take turns."""
        self._to_list[project_id] = LockQuery(project_id, LIST_LIMIT, held=True)
        if self._listing is None and not self._closed:
            self._listing = asyncio.get_running_loop().create_task(self._list_all(), name="subscribed-leases")

    async def _list_all(self) -> None:
        try:
            while self._to_list:
                project_id, query = next(iter(self._to_list.items()))
                del self._to_list[project_id]
                try:
                    following = await self._list_page(project_id, query)
                except StoreUnavailableError:
                    following = query
                    await asyncio.sleep(LIST_RETRY_SECONDS)
                if following is not None:
                    self._to_list.setdefault(project_id, following)
        finally:
            self._listing = None

    async def _list_page(self, project_id: str, query: LockQuery) -> LockQuery | None:
        """Watch the leases of one page. Returns the query of the next one, None at the end or without room."""
        if project_id not in self._feeds:
            return None
        if self._watched.excess(project_id) is not None:
            self._unwatched.note(project_id)
            return None
        page = await self._store.list_locks(query)
        for key, record in page.records:
            if isinstance(record, Held) and project_id in self._feeds:
                self._expiries.note_listed(RecordKey(project_id, key), record, page.now_ms)
        return None if page.next_after is None else query._replace(after=page.next_after)
