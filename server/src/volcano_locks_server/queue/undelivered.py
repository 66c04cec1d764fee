"""Grants that reached nobody, until they are given back (WAIT-5, WAIT-9).

A lease that nobody knows of would keep everybody waiting for its whole TTL. So it is ended by a `GiveBack`, which is
tried again while the store fails. It is dropped as soon as its token was granted something again: then its bearer is
back. What cannot be given back in GIVE_BACK_TRIES_MAX tries, or before the service ends, lapses by itself.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.errors import StoreUnavailableError
from ..rules.lease import GiveBack, Outcome
from .handoff import Asked

GIVE_BACK_TRIES_MAX: Final = 60
RETRY_MS_MAX: Final = 1_000

Ask = Callable[[RecordKey, Asked], "asyncio.Future[Outcome | None]"]


class _Owed:
    __slots__ = ("asked", "command", "key", "timer", "tries")

    def __init__(self, key: RecordKey, command: GiveBack) -> None:
        self.key: Final = key
        self.command: Final = command
        self.asked: asyncio.Future[Outcome | None] | None = None
        self.timer: Timer | None = None
        self.tries = 0

    def forget(self) -> None:
        for one in (self.asked, self.timer):
            if one is not None:
                one.cancel()


class GivingBack:
    """What one node has to give back, by lock and token. `close` ends every timer."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._owed: Final[dict[tuple[RecordKey, bytes], _Owed]] = {}
        self._ask: Ask
        self._stopped = False

    def __len__(self) -> int:
        return len(self._owed)

    def begin(self, ask: Ask) -> None:
        """Send commands by `ask` from now on."""
        self._ask = ask

    def any_of(self, keys: Iterable[RecordKey]) -> bool:
        """Whether something of these locks is to be given back."""
        return bool(self._owed) and not {key for key, _ in self._owed}.isdisjoint(keys)

    def owe(self, key: RecordKey, command: GiveBack) -> None:
        """Give that back, now and until it is done."""
        self.forget(key, command.owner_digest)
        owed = self._owed[key, command.owner_digest] = _Owed(key, command)
        self._pay(owed)

    def forget(self, key: RecordKey, owner_digest: bytes) -> None:
        """That token's bearer is back: what it was granted is its own."""
        owed = self._owed.pop((key, owner_digest), None)
        if owed is not None:
            owed.forget()

    def stop(self) -> None:
        """Try nothing again from now on."""
        self._stopped = True

    def close(self) -> None:
        """After the last batch."""
        for owed in self._owed.values():
            owed.forget()
        self._owed.clear()

    def _pay(self, owed: _Owed) -> None:
        owed.timer = None
        owed.tries += 1
        try:
            owed.asked = self._ask(owed.key, Asked(owed.command))
        except StoreUnavailableError:
            self._pay_later(owed)
        else:
            owed.asked.add_done_callback(lambda done: self._paid(owed, done))

    def _paid(self, owed: _Owed, done: "asyncio.Future[Outcome | None]") -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            self._pay_later(owed)
        elif self._is_owed(owed):
            del self._owed[owed.key, owed.command.owner_digest]

    def _pay_later(self, owed: _Owed) -> None:
        if not self._is_owed(owed):
            return
        if self._stopped or owed.tries >= GIVE_BACK_TRIES_MAX:
            del self._owed[owed.key, owed.command.owner_digest]
        else:
            owed.timer = self._clock.call_in(RETRY_MS_MAX, lambda: self._pay(owed))

    def _is_owed(self, owed: _Owed) -> bool:
        return self._owed.get((owed.key, owed.command.owner_digest)) is owed
