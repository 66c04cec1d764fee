"""Virtual time: the events of one simulated world, in the order of their instants, and the randomness that it draws on.

True time is known only here. It begins at 0 and moves from event to event; nothing waits. Two events of one instant run
in the order in which they were scheduled. Everything that happens is noted in the history, whose digest is the same for
the same seed, in every process.
"""

import gc
import hashlib
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

NOTES_KEPT: Final = 20_000
NOTES_DIGESTED_AT_ONCE: Final = 200


def shown_token(token: int | None) -> str:
    """A fencing token without the digits that all tokens of a run have in common."""
    return "token ?" if token is None else f"token ..{token % 10_000_000:07}"


class Note(NamedTuple):
    """One line of the history: when (seconds of true time), who, about which lock (empty: none), and what."""

    at: float
    who: str
    key: str
    what: str


class Violation(NamedTuple):
    """Something that a correct deployment cannot do: the broken promise, what happened, to which lock, and when.

    `since` is the true time from which on the history explains it.
    """

    kind: str
    message: str
    key: str
    at: float
    since: float


class World:
    """`random_for` gives each part a random source of its own, so that one part's draws do not change another's."""

    def __init__(self, seed: str) -> None:
        self.now = 0.0
        self.is_over = False
        """Ends `run` after the current event."""
        self.violation: Violation | None = None
        """The first violation; the run ends with it."""
        self.running_loop: object = None
        """The loop of the latest turn. It stays the running loop of asyncio until another one has a turn."""
        self.notes: Final[deque[Note]] = deque(maxlen=NOTES_KEPT)
        self._seed: Final = seed
        self._events: Final[list[tuple[float, int, Callable[..., object], tuple[Any, ...]]]] = []
        self._event_count = 0
        self._digest: Final = hashlib.blake2b(digest_size=16)
        self._undigested: Final[list[Note]] = []

    def random_for(self, part: str) -> random.Random:
        return random.Random(f"{self._seed}/{part}")

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        """Call at that true time, or now if it has passed."""
        self._event_count += 1
        heappush(self._events, (when if when > self.now else self.now, self._event_count, call, args))

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        self._event_count += 1
        heappush(self._events, (self.now + seconds, self._event_count, call, args))

    def step(self) -> None:
        """Move to the next event and run it."""
        self.now, _, call, args = heappop(self._events)
        call(*args)

    def run(self) -> None:
        """Step until the world `is_over`."""
        events = self._events
        while not self.is_over:
            self.now, _, call, args = heappop(events)
            call(*args)

    def note(self, who: str, what: str, key: str = "") -> None:
        """Add a line to the history."""
        note = Note(self.now, who, key, what)
        self.notes.append(note)
        self._undigested.append(note)
        if len(self._undigested) >= NOTES_DIGESTED_AT_ONCE:
            self._digest_notes()

    def _digest_notes(self) -> None:
        lines = [f"{at:.6f} {who} {key} {what}\n" for at, who, key, what in self._undigested]
        self._digest.update("".join(lines).encode())
        self._undigested.clear()

    def violate(self, kind: str, message: str, key: str = "", *, since: float | None = None) -> None:
        """Report a violation. It raises nothing, because product code around it would catch that."""
        self.is_over = True
        if self.violation is None:
            self.violation = Violation(kind, message, key, self.now, self.now if since is None else since)
            self.note("checks", f"{kind}: {message}", key)

    @property
    def digest(self) -> str:
        """The digest of the whole history."""
        self._digest_notes()
        return self._digest.hexdigest()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Let the garbage collector rest: it takes a seventh of a run's time, and a run has little garbage in cycles."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def seeded_entropy(seed: str) -> Iterator[None]:
    """Let everything that the product draws at random, also from the operating system, follow from the seed.

    `uuid`, `secrets` and the client's jitter read `os.urandom`, the stores' jitter the module `random`.
    """
    source = random.Random(f"{seed}/entropy")
    from_system, in_module, state = os.urandom, random._urandom, random.getstate()  # type: ignore[attr-defined]
    os.urandom = random._urandom = source.randbytes  # type: ignore[attr-defined]
    random.seed(f"{seed}/module")
    try:
        yield
    finally:
        os.urandom, random._urandom = from_system, in_module  # type: ignore[attr-defined]
        random.setstate(state)
