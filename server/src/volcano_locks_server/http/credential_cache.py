"""Looks credentials up in the store by their digests, and caches what it finds (ADMIN-9, HTTP-24).

A found credential is used for CREDENTIAL_SECONDS_MAX. `forget_all` empties the cache, so that a change on this node
takes effect with the next request; a lookup that began before the change is not cached.

Anyone can send made-up secrets, and lookups share the store with lock traffic. Therefore at most LOOKUPS_AT_ONCE
lookups of unknown secrets run, and at most LOOKUPS_MAX of one kind are pending. A credential that was found before,
even if the cache forgot it, is exempt from LOOKUPS_MAX, and its lookup does not wait for those of unknown ones.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from typing import Any, Final, Generic, Protocol, TypeVar

from ..ports.clock import Clock
from ..ports.lock_store import STORE_SECONDS_MAX
from ..rules.errors import LockError, StoreUnavailableError

CREDENTIAL_SECONDS_MAX: Final = 5
FORGOTTEN_MS: Final = -CREDENTIAL_SECONDS_MAX * 1_000
CREDENTIALS_MAX: Final = 10_000
LOOKUPS_MAX: Final = 1_000
LOOKUPS_AT_ONCE: Final = 4  # of unknown secrets, so that other reads of the store wait for few of them
KNOWN_LOOKUPS_AT_ONCE: Final = 16
LOOKUP_SECONDS_MAX: Final = STORE_SECONDS_MAX


class Cacheable(Protocol):
    """What the cache needs from a credential. `read_at_ms` is when it was looked up; FORGOTTEN_MS once the cache forgot
    it, so that a connection that remembers it stops using it.
    """

    read_at_ms: int

    @property
    def digest(self) -> bytes: ...


C = TypeVar("C", bound=Cacheable)


class LookupSlots:
    """Slots for the lookups of all kinds that run at once: those of unknown credentials, and those of known ones."""

    def __init__(self) -> None:
        self.unknown: Final = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self.known: Final = asyncio.Semaphore(KNOWN_LOOKUPS_AT_ONCE)


class CredentialCache(Generic[C]):
    """The credentials of one kind.

    `look_up` is called with the digest and the instant of the lookup, while it holds one of the `slots`.
    """

    def __init__(self, look_up: Callable[[bytes, int], Awaitable[C | None]], clock: Clock, slots: LookupSlots) -> None:
        self._look_up_in_store: Final = look_up
        self._clock: Final = clock
        self._found: Final[dict[bytes, C]] = {}
        self._known: Final[dict[bytes, None]] = {}  # found at their last lookup, the oldest first; cached or not
        self.lookups: Final[dict[bytes, asyncio.Task[C | None]]] = {}
        self._slots: Final = slots

    def cached(self, digest: bytes) -> C | None:
        """The credential if it is cached, even if it is stale. Never waits."""
        found = self._found.get(digest)
        return found if found is not None and compare_digest(found.digest, digest) else None

    async def get(self, digest: bytes) -> C | None:
        """The credential, None if the store does not know it. Concurrent calls for one digest share a lookup.

        Raises LockError `lock_service_unavailable` and StoreUnavailableError.
        """
        found = self.cached(digest)
        if found is not None and is_fresh(found, self._clock.now_ms()):
            return found
        lookup = self.lookups.get(digest)
        if lookup is None:
            if digest not in self._known and len(self.lookups) >= LOOKUPS_MAX:
                raise LockError(
                    "lock_service_unavailable",
                    "this server is checking too many unknown credentials at once: try again in a moment",
                    retry_after_seconds=1,
                )
            lookup = self.lookups[digest] = asyncio.create_task(self._look_up(digest), name="credential")
            lookup.add_done_callback(retrieve_exception)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX):
                return await asyncio.shield(lookup)
        except TimeoutError:
            late = f"the store did not answer within {LOOKUP_SECONDS_MAX:g} s"
            raise StoreUnavailableError("lookup_late", late) from None

    def forget_all(self) -> None:
        """Empty the cache after a change in the store; running lookups are not cached."""
        for digest in list(self._found):
            self._forget(digest)
        self.lookups.clear()

    async def _look_up(self, digest: bytes) -> C | None:
        this = asyncio.current_task()
        read_at_ms = self._clock.now_ms()
        try:
            async with self._slots.known if digest in self._known else self._slots.unknown:
                found = await self._look_up_in_store(digest, read_at_ms)
        finally:
            is_current = self.lookups.get(digest) is this  # not after `forget_all`
            if is_current:
                del self.lookups[digest]
        if is_current:
            self._forget(digest)
            self._known.pop(digest, None)
            if found is not None:
                if len(self._known) >= CREDENTIALS_MAX:
                    del self._known[next(iter(self._known))]
                self._known[digest] = None
                if len(self._found) >= CREDENTIALS_MAX:
                    self._forget(next(iter(self._found)))
                self._found[digest] = found
        return found

    def _forget(self, digest: bytes) -> None:
        """Remove a credential from the cache, and end its use by the connections that remember it."""
        found = self._found.pop(digest, None)
        if found is not None:
            found.read_at_ms = FORGOTTEN_MS


def is_fresh(found: Cacheable, now_ms: int) -> bool:
    """Whether the looked-up credential may still be used."""
    return now_ms - found.read_at_ms < CREDENTIAL_SECONDS_MAX * 1_000


def retrieve_exception(task: "asyncio.Task[Any]") -> None:
    """Prevent asyncio from logging the failure of a task that no request awaits any longer."""
    if not task.cancelled():
        task.exception()
