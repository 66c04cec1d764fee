"""The client for threads. Each call runs one operation in the calling thread; other threads only renew held locks.

A client may be shared by threads. It starts nothing until it is used, and starts again in a forked child. Close it, or
use it as a context manager, to end its threads and connections at once.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, cast, overload

from volcano_locks.clock import Clock
from volcano_locks.config import Config
from volcano_locks.errors import VolcanoError
from volcano_locks.holding.client import BaseClient, BaseLocks, checked_block
from volcano_locks.protocol.arguments import Uuid, checked_key
from volcano_locks.protocol.lease import Lease, LockState
from volcano_locks.sync.block import LockBlock, LockGuard
from volcano_locks.sync.driver import Driver
from volcano_locks.sync.renewals import Renewals

if TYPE_CHECKING:
    from datetime import datetime

    from volcano_locks.features.exclusive import OnHeld
    from volcano_locks.features.watch import Leadership
    from volcano_locks.http.transport import Transport
    from volcano_locks.protocol.hold_entry import HoldEntry
    from volcano_locks.protocol.lock_view import LockView, StateFilter

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Client(BaseClient):
    """A client of the lock service for blocking code.

    ```python
    with Client() as client, client.locks.with_lock("daily-rollup", ttl=30) as guard:
        rollup(fencing_token=guard.fencing_token)
    ```
    """

    locks: "Locks"

    def _set_up(self, config: Config, clock: Clock, transport: "Transport | None") -> None:
        self.locks = Locks(config, clock, transport)

    def close(self) -> None:
        """End the threads and the connections, after running releases (bounded). Open blocks are no longer renewed."""
        self.locks._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Locks(BaseLocks):
    """The calls. Each raises a `VolcanoError` if it fails, and `TypeError` or `ValueError` for bad arguments."""

    def __init__(self, config: Config, clock: Clock, transport: "Transport | None") -> None:
        super().__init__(config, clock)
        self._driver = Driver(config, clock, transport, self._blocks)
        self._renewals = Renewals(self._driver, clock)

    def acquire(
        self,
        key: str,
        *,
        ttl: int,
        wait: float | None = None,
        token: Uuid | None = None,
        request_id: Uuid | None = None,
    ) -> Lease:
        """Acquire the lock and return a lease of `ttl` seconds; `LockHeldError` if it is held.

            lease = client.locks.acquire("daily-rollup", ttl=30)
            try:
                rollup(fencing_token=lease.fencing_token)
            finally:
                client.locks.release("daily-rollup", lease)

        Nothing renews such a lease in the background; `with_lock` does.

        `wait`: how many seconds to wait for the lock; `math.inf` waits without a limit.

        `token` and `request_id` are UUIDs that the client generates by default. Pass and keep them to recover an
        acquire whose outcome is unknown. After a `TransportError` or an `UnavailableError` the client then sends no
        release, and the same call with the same two ids returns the lease. Without `token`, and with `wait`,
        the client releases what it may have acquired before it raises.
        """
        return self._driver.run(
            self._operations.acquire(key, ttl, token, request_id, wait), undo=self._operations.undo_acquire
        )

    def renew(self, key: str, lease: Lease, *, ttl: int | None = None, request_id: Uuid | None = None) -> Lease:
        """Renew `lease` of the lock `key` and return the lease that ends `ttl` seconds (default: its own) from now.

            lease = client.locks.renew("daily-rollup", lease, ttl=60)

        Raises `LockOwnershipLostError` if the lease is lost, `TypeError` if `lease` is not a `Lease` and
        `ValueError` if it belongs to another lock; nothing is sent then.

        Never renew a block's lease by hand: the block would not know. Never shorten a lease after a renewal that timed
        out: a late duplicate of the shorter renewal may still arrive after a longer one, and end the lease before its
        known deadline.
        """
        return self._driver.run(self._operations.renew(key, lease, ttl, request_id))

    def release(self, key: str, lease: Lease, *, request_id: Uuid | None = None) -> None:
        """Release `lease` and so free the lock `key`; `LockOwnershipLostError` if another owner holds it by now.

            client.locks.release("daily-rollup", lease)

        Raises `TypeError` if `lease` is not a `Lease` and `ValueError` if it belongs to another lock; nothing is sent.
        """
        try:
            return self._driver.run(self._operations.release(key, lease, request_id))
        except VolcanoError:
            raise
        except BaseException:  # an interrupt, possibly before anything was sent (case 16); or bad arguments
            with contextlib.suppress(VolcanoError, TypeError, ValueError):
                self._driver.run(self._operations.release_after_interrupt(key, lease, request_id))
            raise

    def get(self, key: str, *, request_id: Uuid | None = None) -> LockState:
        """Return whether the lock is held, until when, and its fencing token.

        ```python
        state = client.locks.get("daily-rollup")
        print(state.held, state.expires_at)
        ```
        """
        return self._driver.run(self._operations.get(key, request_id))

    def view(self, key: str, *, request_id: Uuid | None = None) -> "LockView":
        """Return who holds the lock, since when and until when, and how many acquires wait for it.

        ```python
        view = client.locks.view("daily-rollup")
        print(view.holder, view.expires_at, view.waiters)
        ```
        """
        return self._driver.run(self._operations.view(key, request_id))

    def list(self, prefix: str = "", *, state: "StateFilter" = "all") -> "Iterator[LockView]":
        """Iterate over the locks whose keys begin with `prefix`, in key order; `state` is `held`, `free` or `all`.

        Pages are requested on demand:

            for view in client.locks.list("reports:", state="held"):
                print(view.key, view.holder, view.expires_at)
        """
        return cast("Iterator[LockView]", self._driver.iterate(self._operations.list(prefix, state)))

    def history(
        self,
        key: str | None = None,
        *,
        prefix: str = "",
        at: "datetime | None" = None,
        since: "datetime | None" = None,
        before: "datetime | None" = None,
    ) -> "Iterator[HoldEntry]":
        """Iterate over who held the lock, the latest hold first: the current one, expired ones, and those of the last
        days (`--history-days` of the server).

        `at` selects the hold that lasted at that instant, `since` and `before` those that overlap that period; all need
        a time zone. Without `key`, of all locks whose keys begin with `prefix`, in key order:

            for hold in client.locks.history("billing", since=yesterday):
                print(hold.holder, hold.began_at, hold.held_seconds, hold.ended)
        """
        operation = self._operations.history(key, prefix, at, since, before)
        return cast("Iterator[HoldEntry]", self._driver.iterate(operation))

    def force_release(
        self,
        key: str,
        *,
        fencing_token: int | None = None,
        reason: str | None = None,
        request_id: Uuid | None = None,
    ) -> None:
        """Free the lock, regardless of its holder. The holder learns of the loss at its next renewal.

        With `fencing_token`, only that lease: a `ConflictError` with the code `lock_changed` means that the lock has
        changed hands since you looked, and nothing was freed. A `NotFoundError` means that the server is too old for
        that; nothing was freed either. `reason`, of at most 200 characters, is shown in the server's log and in the
        `force_released` event.

            view = client.locks.view("daily-rollup")
            client.locks.force_release("daily-rollup", fencing_token=view.fencing_token)
        """
        return self._driver.run(self._operations.force_release(key, fencing_token, reason, request_id))

    def with_lock(
        self,
        key: str,
        *,
        ttl: int,
        wait: float | None = None,
        hold_at_least: float | None = None,
        renew_every: float | None = None,
        token: Uuid | None = None,
        request_id: Uuid | None = None,
    ) -> LockBlock:
        """Return a context manager, or decorator: hold the lock, renewed in the background, while its body runs.

            with client.locks.with_lock("daily-rollup", ttl=30) as guard:
                guard.raise_if_lost()
                rollup(fencing_token=guard.fencing_token)

        Entering raises `LockHeldError` and other errors, and the body does not run then. A loss does not
        interrupt the body: check `guard.lost` or call `guard.raise_if_lost()` before anything that must not happen
        twice. The guard also counts as lost while the block is being left, for a thread that outlives it.

        `wait`, `token` and `request_id` are those of `acquire`, but a block that cannot be entered always releases what
        it may have acquired. `hold_at_least`: if the body ends sooner, the lock stays held until that many seconds
        after entering, for callers that are a little late; it is free a second later, and after 6 seconds at the
        earliest. `renew_every`: seconds between renewals, from 1 to a third of the TTL; by default that third, or a
        minute if that is less.
        """

        def new_block() -> LockBlock:
            block = self._new_block(key, ttl, wait, hold_at_least, renew_every, token, request_id)
            return LockBlock(block, self._driver, self._renewals, new_block=None if token else new_block)

        return new_block()

    def lead(
        self,
        key: str,
        run: Callable[[LockGuard], T],
        *,
        ttl: int,
        renew_every: float | None = None,
        stop: threading.Event | None = None,
    ) -> T | None:
        """Wait for the lock without a limit and run `run(guard)` in this thread while holding it; again after a loss.

            def work(guard):
                while not guard.lost and not stop.wait(1):
                    plan_jobs(fencing_token=guard.fencing_token)

            client.locks.lead("scheduler", work, ttl=15, stop=stop)

        Returns what `run` returned while it led, and raises what it raised, except the guard's own loss. A loss does
        not interrupt `run`: it must check, and the next campaign waits for its end. Setting `stop` ends a campaign with
        None; while leading, `run` must check it.
        """
        from volcano_locks.features import leader  # noqa: PLC0415 - rarely needed

        checked_block(ttl, None, renew_every)

        def term() -> LockBlock:
            block = self._new_block(key, ttl, inf, None, renew_every)
            return LockBlock(block, self._driver, self._renewals, stop)

        return leader.lead(term, run, stop)

    @overload
    def exclusive(
        self,
        key: str,
        *,
        ttl: int,
        on_held: 'Literal["raise", "wait"]' = ...,
        hold_at_least: float | None = ...,
        renew_every: float | None = ...,
    ) -> "Callable[[Callable[P, R]], Callable[P, R]]": ...

    @overload
    def exclusive(
        self,
        key: str,
        *,
        ttl: int,
        on_held: 'Literal["skip"]',
        hold_at_least: float | None = ...,
        renew_every: float | None = ...,
    ) -> "Callable[[Callable[P, R]], Callable[P, R | None]]": ...

    def exclusive(
        self,
        key: str,
        *,
        ttl: int,
        on_held: "OnHeld" = "raise",
        hold_at_least: float | None = None,
        renew_every: float | None = None,
    ) -> "Callable[[Callable[P, Any]], Callable[P, Any]]":
        """A decorator: the function runs under the lock that `key` names, a template of the function's arguments.

            @client.locks.exclusive("report-{day}", ttl=60, on_held="skip", hold_at_least=60)
            def report(day: str, guard: LockGuard | None = None) -> None: ...

        If the lock is held, a call raises `LockHeldError`; with `on_held="skip"` it returns None, with `"wait"` it
        waits. An argument named `guard` that the caller omits receives the block's guard. Everything else is as in
        `with_lock`.
        """
        from volcano_locks.features import exclusive  # noqa: PLC0415 - rarely needed

        checked_block(ttl, hold_at_least, renew_every)
        return exclusive.threaded(
            key,
            on_held,
            lambda key, wait: self.with_lock(
                key, ttl=ttl, wait=wait, hold_at_least=hold_at_least, renew_every=renew_every
            ),
        )

    def watch(self, key: str) -> "Iterator[Leadership]":
        """Iterate over who holds the lock: first the current leadership, then each change, without end.

            for change in client.locks.watch("scheduler"):
                print(change.holder if change.held else "free", change.since)

        Continues over broken connections and restarts; raises other errors. No item repeats the last one.
        """
        from volcano_locks.features.watch import Watch  # noqa: PLC0415 - rarely needed

        watch = Watch(checked_key(key), self._operations, self._clock.now)
        return cast("Iterator[Leadership]", self._driver.iterate(watch.changes()))

    def _close(self) -> None:
        self._renewals.close()
        self._driver.close()
