"""One lock of the fake: the LEASE rules and its line of waiters (WAIT rules), without HTTP and without a clock."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from volcano_locks.errors import LOCK_HELD, LOCK_OWNERSHIP_LOST
from volcano_locks.protocol.messages import TTL_SECONDS_MAX
from volcano_locks.testing.clock import done

MARGIN_SECONDS = 1.0
GRACE_SECONDS = 1.0
PLACE_KEPT_SECONDS = 5.0


class Happening(NamedTuple):
    """What became of a lock, for those who watch."""

    kind: str
    fencing_token: int | None
    holder: str | None
    why: str
    expires_at: float | None = None


class Asked(NamedTuple):
    """Who asks for a lease, and of what length."""

    token: str
    ttl_seconds: int
    holder: str | None

    def __repr__(self) -> str:
        return f"Asked({self.ttl_seconds}, {self.holder!r})"


class Place:
    """A waiter's place in the line. `answer` is what its request is told: a code, or "" for the lease."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.answer: str | None = None
        self.kept_until: float | None = None
        self._loop = asyncio.get_running_loop()
        self.changed: asyncio.Future[None] = self._loop.create_future()

    def settle(self, answer: str) -> None:
        """Tell its request, in whatever loop that is served."""
        self.answer = answer
        self.wake()

    def wake(self) -> None:
        """Have its request look again."""
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._change)

    def _change(self) -> None:
        done(self.changed)
        self.changed = self._loop.create_future()


@dataclass(slots=True)
class FakeLock:
    """One lock. Each verb gives "" when it succeeded, else the code of its refusal. Instants are in seconds."""

    key: str
    tell: Callable[[str, Happening], None]
    fencing_token: int = 0
    owner: str | None = field(default=None, repr=False)
    holder: str | None = None
    ttl_seconds: int = 0
    acquired_at: float = 0.0
    renewed_at: float = 0.0
    expires_at: float = 0.0
    _deadline: float = 0.0
    _lapsed_owner: str | None = field(default=None, repr=False)
    _retired: set[str] = field(default_factory=set, repr=False)
    _line: list[Place] = field(default_factory=list)

    @property
    def waiters(self) -> int:
        """How many requests wait."""
        return sum(place.kept_until is None for place in self._line)

    def look(self, now: float, utc_ms: int) -> None:
        """Do what is due: end the lease whose grace is over, and serve those who wait."""
        if self.owner is not None and now >= self.over_at:
            self._lapsed_owner, self.owner = self.owner, None
            self.tell(self.key, Happening("expired", self.fencing_token, self.holder, "not_renewed"))
        for place in [place for place in self._line if place.kept_until is not None and place.kept_until <= now]:
            self._line.remove(place)
            self.tell(self.key, Happening("gave_up", None, place.asked.holder, "left"))
        for place in [place for place in self._line if place.kept_until is None]:
            answer = self._judged(place.asked, now, utc_ms, "waited")
            if answer == LOCK_HELD:
                return
            self._line.remove(place)
            place.settle(answer)

    @property
    def over_at(self) -> float:
        """When anybody may take over the lease there is."""
        return self.expires_at + GRACE_SECONDS

    def acquire(self, asked: Asked, now: float, utc_ms: int) -> str:
        """Without waiting. Those who wait come first: see `look`."""
        return self._judged(asked, now, utc_ms, "free")

    def join(self, asked: Asked) -> Place:
        """A place at the end of the line, or the one that this token has (WAIT-6)."""
        place = Place(asked)
        for at, other in enumerate(self._line):
            if other.asked.token == asked.token:
                other.settle(LOCK_HELD)
                self._line[at] = place
                return place
        self._line.append(place)
        self.tell(self.key, Happening("waiting", None, asked.holder, "held"))
        return place

    def end_wait(self, place: Place, now: float) -> None:
        """Its time is up: the place is kept for a while."""
        place.kept_until = now + PLACE_KEPT_SECONDS

    def gone(self, place: Place) -> None:
        """Its request was hung up: it loses the place, or gives back what it was granted (WAIT-5)."""
        if place in self._line:
            self._line.remove(place)
            self.tell(self.key, Happening("gave_up", None, place.asked.holder, "left"))
        elif place.answer == "" and self.owner == place.asked.token:
            self.tell(self.key, Happening("released", self.fencing_token, self.holder, "given_back"))
            self.owner = None  # and the token is not retired: its owner may come back with it

    def renew(self, asked: Asked, now: float) -> str:
        """By the owner, before the margin."""
        if self.owner != asked.token or now >= self.expires_at - MARGIN_SECONDS:
            return LOCK_OWNERSHIP_LOST
        self._set(asked, now)
        for place in self._line:
            place.wake()  # a shorter lease ends sooner than it knows
        self.tell(self.key, Happening("renewed", self.fencing_token, self.holder, "renewed", self.expires_at))
        return ""

    def release(self, token: str) -> str:
        """By the owner, or of a free lock; of a waiter, it leaves the line (WAIT-5)."""
        for place in [place for place in self._line if place.asked.token == token]:
            self._line.remove(place)
            place.settle(LOCK_OWNERSHIP_LOST)
            self.tell(self.key, Happening("gave_up", None, place.asked.holder, "left"))
        if self.owner not in (None, token):
            return LOCK_OWNERSHIP_LOST
        self.free("released", token)
        return ""

    def free(self, why: str, retired: str | None) -> None:
        """Whoever has it; their token is retired."""
        retired = retired or self.owner or self._lapsed_owner
        if self.owner is not None:
            kind = "force_released" if why == "forced" else "released"
            self.tell(self.key, Happening(kind, self.fencing_token, self.holder, why))
        self.owner = None
        if retired is not None:
            self._retired.add(retired)

    def turn_away(self) -> None:
        """Answer all who wait that they go on elsewhere (WAIT-8)."""
        for place in self._line:
            place.settle("lock_service_unavailable")
        self._line.clear()

    def _judged(self, asked: Asked, now: float, utc_ms: int, why: str) -> str:
        if self.owner == asked.token:
            return self.renew(asked, now)
        if self.owner is not None:
            return LOCK_HELD
        if asked.token in self._retired:
            return LOCK_OWNERSHIP_LOST
        if why == "free" and self._lapsed_owner is not None:
            why = "taken_over"
        self.owner, self._lapsed_owner, self._retired = asked.token, None, set()
        self.acquired_at, self._deadline = now, now + TTL_SECONDS_MAX
        self.fencing_token = max(self.fencing_token + 1, utc_ms)
        self._set(asked, now)
        self.tell(self.key, Happening("acquired", self.fencing_token, self.holder, why, self.expires_at))
        return ""

    def _set(self, asked: Asked, now: float) -> None:
        self.renewed_at, self.ttl_seconds, self.holder = now, asked.ttl_seconds, asked.holder
        self.expires_at = min(now + asked.ttl_seconds, self._deadline)
