"""The lines of one node: who waits for which lock, in the order of arrival.

The theory. A waiter takes a place in its lock's line first, and only then is its acquire judged by a batch of that
key. A batch that is built later sees the place; one that was built before is followed by the acquire itself. So no
wake-up is lost, and whoever is in line after a batch was judged is there because the lock was held at that instant.
What becomes free later is noticed by `looking`; how the lock is shared with other nodes' lines is `sharing`'s.

A grant travels: from the step that made it, through the commit, to the request that waits. Whoever hangs up on the
way is not answered, and what it was granted is given back (`GiveBack`, which ends that very lease and no other).
What a batch that failed may have granted is kept in mind with the place (`maybe`), and is given back too if nobody is
left to be told.

All of it runs on the service's event loop, but for the steps of batches, which see only what was written down for
them (`handoff`). It does no I/O. It is bounded: WAITERS_PER_LOCK_MAX, WAITERS_MAX. Rules: spec/waiting.md, WAIT.

Not promised: an order between nodes. Each has its own lines.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.errors import LockError, StoreUnavailableError
from ..rules.lease import HELD, NOT_OWNER, Acquire, GiveBack, Granted, Outcome, Refused
from .fairness import Sharing
from .handoff import Asked, Deed, Head, Heads, Report, Served, Serving
from .recheck import Looking
from .undelivered import Ask, GivingBack
from .waiter import RETRY_MS_MIN, Line, Place, Waited

WAITERS_PER_LOCK_MAX: Final = 1_000
WAITERS_MAX: Final = 10_000
PLACE_KEPT_SECONDS: Final = 5
WAIT_SLACK_SHARE: Final = (
    100  # a wait may end late by its hundredth, so that many who wait long end and come back together
)
WAIT_SLACK_MS_MAX: Final = 250
STOPPING: Final = "the service is stopping: ask again, elsewhere or in a moment"

Why = Literal["granted", "refused", "gave_up"]


class Lines:
    """All lines of one node. `begin` says how commands are sent; `close` ends every timer.

    `look_ms`: look at every line that often, for the sake of other nodes; None where there are none.
    """

    def __init__(self, clock: Clock, *, look_ms: int | None = None) -> None:
        self.clock: Final = clock
        self._lines: Final[dict[RecordKey, Line]] = {}
        self._owed: Final = GivingBack(clock)
        self._looking: Final = Looking(clock, self._lines, every_ms=look_ms)
        self.sharing: Final = Sharing(clock, self._looking.look)
        self.look: Final = self._looking.look
        self.look_all: Final = self._looking.look_all
        self._places = 0
        self._stopped = False
        self._ask: Ask
        self.present = 0
        self.on_joined: Callable[[RecordKey, str | None], None] = lambda _key, _holder: None
        self.on_left: Callable[[RecordKey, str | None, Why], None] = lambda _key, _holder, _why: None
        self.on_deeds: Callable[[Sequence[Deed]], None] | None = None

    def begin(self, ask: Ask) -> None:
        """Send commands by `ask` from now on."""
        self._ask = ask
        self._owed.begin(ask)
        self._looking.begin(ask)

    # --- what others may ask ---

    def count(self, key: RecordKey) -> int:
        """How many wait for that lock on this node now."""
        line = self._lines.get(key)
        return 0 if line is None else line.present

    def keys(self) -> list[RecordKey]:
        """The locks that somebody waits for on this node now."""
        return [key for key, line in self._lines.items() if line.present]

    # --- the waiters ---

    def join(self, key: RecordKey, acquire: Acquire, wait_ms: int) -> Place:
        """Take the last place in the line, or one's own again; its `answer` is to be awaited, and `leave` called by
        whoever stops waiting for it. Raises LockError `too_many_waiters` and StoreUnavailableError.
        """
        if self._stopped:
            raise StoreUnavailableError("stopping", STOPPING)
        line = self._lines.get(key)
        place = None if line is None else line.places.get(acquire.owner_digest)
        if place is None:
            line, place = self._new_place(key, acquire)
        elif place.answer is not None:
            self._answer(place, HELD)
        assert line is not None
        place.acquire = acquire
        place.judged = place.over = False
        place.answer = answer = asyncio.get_running_loop().create_future()
        line.present += 1
        self.present += 1
        _cancel(place.timer)
        slack_ms = min(wait_ms // WAIT_SLACK_SHARE, WAIT_SLACK_MS_MAX)
        place.timer = self.clock.call_in(wait_ms, lambda: self._over(place), slack_ms=slack_ms)
        try:
            place.asked = self._ask(key, Asked(acquire, place=place))
        except StoreUnavailableError:
            self._detach(place)
            self._keep(place)
            raise
        place.asked.add_done_callback(lambda done: self._joined(place, answer, done))
        return place

    def leave(self, place: Place, answer: "asyncio.Future[Waited]") -> None:
        """The request that waited for `answer` is gone: it loses its place, and what it was granted (WAIT-5)."""
        if place.answer is answer:
            self._detach(place)
            self._remove(place, "gave_up")
            answer.cancel()
        elif answer.cancelled():
            if place.answer is None:
                self._remove(place, "gave_up")
        elif answer.done() and answer.exception() is None:
            self.give_back(place.key, place.acquire.owner_digest, answer.result())

    def give_back(self, key: RecordKey, owner_digest: bytes, waited: Waited) -> None:
        """What was granted is not going to be told to anybody."""
        if waited.untold and isinstance(waited.outcome, Granted):
            self._owed.owe(key, GiveBack(owner_digest, waited.outcome.fencing_token, waited.at_ms))

    def withdraw(self, key: RecordKey, owner_digest: bytes) -> None:
        """A release came with a token that may be in line: it waits no more (WAIT-5)."""
        line = self._lines.get(key)
        place = None if line is None else line.places.get(owner_digest)
        if place is not None:
            if place.answer is not None:
                self._answer(place, NOT_OWNER)
            self._remove(place, "gave_up")

    def stop(self) -> None:
        """Answer all who wait, and let nobody wait any more (WAIT-8). Who is in a batch hears what comes of it."""
        self._stopped = True
        self._owed.stop()
        self._looking.stop()
        for line in list(self._lines.values()):
            for place in list(line.places.values()):
                self._over(place)

    def close(self) -> None:
        """After the last batch: nothing of this is left to be done."""
        self.stop()
        for line in list(self._lines.values()):
            for place in list(line.places.values()):
                if place.answer is not None:
                    self._fail(place, StoreUnavailableError("stopping", STOPPING))
                self._remove(place, "gave_up")
        self._owed.close()

    # --- the batches ---

    def turn(self, keys: list[RecordKey]) -> "LineTurn | None":
        """What a batch of `keys` has to do beside its commands (`commit.Turn`)."""
        watched = self.on_deeds is not None
        if not self._lines and not self._owed and not watched:
            return None
        heads = {}
        for key in keys:
            line = self._lines.get(key)
            if line is not None and line.present:
                line.looking = False
                heads[key] = self._heads(key, line)
        if not heads and not watched and not self._owed.any_of(keys):
            return None
        return LineTurn(self, heads, self.clock.now_ms(), watched=watched)

    def _heads(self, key: RecordKey, line: Line) -> Heads:
        waiting = []
        for place in line.places.values():
            if place.in_line and place.answer is not None and not place.answer.done():
                place.in_flight = True
                waiting.append(Head(place, place.acquire, place.maybe is not None))
        grants_left = self.sharing.grants_left(key, line)
        return Heads(tuple(waiting), WAITERS_PER_LOCK_MAX if grants_left is None else grants_left)

    def committed(self, turn: "LineTurn", report: Report) -> None:
        """A batch is durable: tell those whom it granted the lock, and see how the others' locks stand."""
        for key, owner_digest in report.granted:
            self._owed.forget(key, owner_digest)  # its bearer came back
        for served in report.served:
            self._hand_over(served, report, turn.began_ms)
        for place in turn.places:
            place.in_flight = place.late = False
            place.judged = True
        joined = [place for place in report.joined if isinstance(place, Place)]
        for place in joined:
            place.judged = place.in_line = True
        for key, now in report.lines.items():
            self.sharing.count(key, report, now.fencing_token)
            line = self._lines.get(key)
            if line is None:
                continue
            line.failing = False
            line.retry_ms = RETRY_MS_MIN
            if now.free_in_ms:
                self._looking.at(key, line, turn.began_ms + now.free_in_ms)
            elif now.left and not line.yielding:
                self.sharing.leave_to_others(key, line)
        for place in (*turn.places, *joined):
            self._still_waits(place)
        if self.on_deeds is not None and report.deeds:
            self.on_deeds(report.deeds)

    def _still_waits(self, place: Place) -> None:
        """A batch saw this waiter and did not serve it: the lock was held."""
        if place.answer is None:
            return
        if place.over:
            self._finish(place)
        elif not place.shown:
            place.shown = True
            self.on_joined(place.key, place.acquire.holder)

    def failed(self, turn: "LineTurn") -> None:
        """It is not known what became of a batch: those whom it may have granted the lock may have it."""
        for served in turn.grants:
            place, outcome = served.place, served.outcome
            assert isinstance(place, Place)
            assert isinstance(outcome, Granted)
            granted = GiveBack(served.owner_digest, outcome.fencing_token, served.at_ms)
            if place.answer is not None:
                place.maybe = granted
            else:
                self._owed.owe(served.key, granted)
        for place in turn.places:
            place.in_flight = place.late = False
        for key in turn.keys:
            line = self._lines.get(key)
            if line is not None:
                line.failing = True
                self._looking.soon(key, line)
        for place in turn.places:
            if place.over and place.judged and place.answer is not None:
                self._finish(place)

    def late(self, turn: "LineTurn") -> None:
        """A batch hangs: whoever's wait is over is not made to wait for it."""
        for key in turn.keys:
            line = self._lines.get(key)
            if line is not None:
                line.failing = True
        for place in turn.places:
            place.late = True
            if place.over and place.judged and place.answer is not None:
                self._finish(place)

    def _hand_over(self, served: Served, report: Report, began_ms: int) -> None:
        place, outcome = served.place, served.outcome
        assert isinstance(place, Place)
        waited = Waited(outcome, served.at_ms, began_ms, served.untold)
        if place.answer is not None and place.answer.done():  # its request was cancelled this moment
            self._detach(place)
            self._remove(place, "gave_up")
        if place.answer is not None:
            self._answer(place, waited)
            self._remove(place, "granted" if isinstance(outcome, Granted) else "refused")
        elif isinstance(outcome, Refused):
            self._remove(place, "refused")
        elif report.granted[served.key, served.owner_digest] < 2:
            self.give_back(served.key, served.owner_digest, waited)

    # --- places ---

    def _new_place(self, key: RecordKey, acquire: Acquire) -> tuple[Line, Place]:
        line = self._lines.get(key)
        if line is not None and len(line.places) >= WAITERS_PER_LOCK_MAX:
            raise LockError(
                "too_many_waiters",
                f"{WAITERS_PER_LOCK_MAX} wait for this lock here already: try again in a moment, or wait less eagerly",
                retry_after_seconds=1,
            )
        if self._places >= WAITERS_MAX:
            raise StoreUnavailableError("too_many_waiters", f"{WAITERS_MAX} wait on this node already")
        if line is None:
            line = self._lines[key] = Line()
            self._looking.now_and_then()
        place = line.places[acquire.owner_digest] = Place(key, acquire)
        self._places += 1
        return line, place

    def _over(self, place: Place) -> None:
        """The time of a wait is over. It is not answered before it is known whether it was granted (WAIT-9)."""
        if place.answer is None:
            return
        place.over = True
        if place.judged and (place.late or not place.in_flight):
            self._finish(place)

    def _finish(self, place: Place) -> None:
        """End a wait without a grant; the place is kept for a while (WAIT-6)."""
        line = self._lines[place.key]
        if self._stopped:
            self._fail(place, StoreUnavailableError("stopping", STOPPING))
        elif line.failing or place.maybe is not None:
            unknown = "the store failed during the wait: it is not known whether the lock was granted"
            self._fail(place, StoreUnavailableError("wait_unknown", unknown))
        else:
            self._answer(place, HELD)
        self._keep(place)

    def _joined(self, place: Place, answer: "asyncio.Future[Waited]", done: "asyncio.Future[Outcome | None]") -> None:
        """Its own acquire was judged, or could not be: then this is its answer, as it would be without a wait."""
        if done.cancelled() or (error := done.exception()) is None:
            return
        if place.answer is answer and not place.judged:
            assert isinstance(error, StoreUnavailableError)
            self._fail(place, error)
            self._keep(place)

    def _answer(self, place: Place, answered: Waited | Refused) -> None:
        """Answer the request in that place; the place is left as it is."""
        answer = place.answer
        assert answer is not None
        self._detach(place)
        if not answer.done():
            answer.set_result(answered if isinstance(answered, Waited) else Waited(answered))

    def _fail(self, place: Place, error: StoreUnavailableError) -> None:
        answer = place.answer
        assert answer is not None
        self._detach(place)
        if not answer.done():
            answer.set_exception(error)

    def _detach(self, place: Place) -> None:
        """No request waits in that place any more."""
        place.answer = None
        _cancel(place.timer)
        _cancel(place.asked)
        place.timer = place.asked = None
        self._lines[place.key].present -= 1
        self.present -= 1

    def _keep(self, place: Place) -> None:
        """Keep a place without a request, for a while; what it may have been granted is given back."""
        self._give_back_maybe(place)
        place.in_line = True
        if self._stopped:
            self._remove(place, "gave_up")
        else:
            _cancel(place.timer)
            kept_ms = PLACE_KEPT_SECONDS * 1_000
            place.timer = self.clock.call_in(kept_ms, lambda: self._drop(place), slack_ms=WAIT_SLACK_MS_MAX)

    def _drop(self, place: Place) -> None:
        if place.answer is None:
            self._remove(place, "gave_up")

    def _remove(self, place: Place, why: Why) -> None:
        if why != "granted":
            self._give_back_maybe(place)
        _cancel(place.timer)
        line = self._lines.get(place.key)
        if line is None or line.places.get(place.acquire.owner_digest) is not place:
            return
        del line.places[place.acquire.owner_digest]
        self._places -= 1
        if not line.places:
            line.cancel_timers()
            del self._lines[place.key]
        if place.shown:
            self.on_left(place.key, place.acquire.holder, why)

    # --- giving back ---

    def _give_back_maybe(self, place: Place) -> None:
        if place.maybe is not None:
            self._owed.owe(place.key, place.maybe)
            place.maybe = None


class LineTurn:
    """What one batch does for the lines of its keys (`commit.Turn`). `places` are the waiters that it saw."""

    def __init__(self, lines: Lines, heads: dict[RecordKey, Heads], began_ms: int, *, watched: bool) -> None:
        self.began_ms: Final = began_ms
        self._lines: Final = lines
        self._heads: Final = heads
        self._watched: Final = watched
        self._runs: Final[list[Serving]] = []
        self.keys: Final[Sequence[RecordKey]] = list(heads)
        self.places: Final = [
            head.place for mine in heads.values() for head in mine.waiting if isinstance(head.place, Place)
        ]

    @property
    def grants(self) -> list[Served]:
        """What the batch may have granted, by any run of its step; the newest last."""
        return [one for run in self._runs for one in run.grants]

    def judge(self) -> Serving:
        run = Serving(self._heads, watched=self._watched)
        self._runs.append(run)
        return run

    def committed(self, report: object) -> None:
        assert isinstance(report, Report)
        self._lines.committed(self, report)

    def failed(self) -> None:
        self._lines.failed(self)

    def late(self) -> None:
        self._lines.late(self)


def _cancel(one: "Timer | asyncio.Future[Outcome | None] | None") -> None:
    if one is not None:
        one.cancel()
