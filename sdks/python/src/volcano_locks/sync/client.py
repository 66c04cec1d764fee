"""The client for threads. Every verb is one line: a flow, run in the calling thread or in the client's own.

A client may be shared by threads. It starts nothing until it is used, and follows a `fork` by starting anew
in the child. Close it, or use it as a context manager, to end its thread and connections at once.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from volcano_locks.clock import Clock, SystemClock
from volcano_locks.config import TIMEOUT_SECONDS, Config
from volcano_locks.errors import VolcanoError
from volcano_locks.holding.block import Block
from volcano_locks.holding.guard import LockGuard
from volcano_locks.http.transport import HttpSender, perform
from volcano_locks.protocol.effects import Flow
from volcano_locks.protocol.lock_operations import LockFlows, checked_lease
from volcano_locks.protocol.messages import Lease, LockState, Uuid, checked_hold, checked_key, checked_ttl
from volcano_locks.sync.background_loop import Background
from volcano_locks.sync.block import LockBlock
from volcano_locks.sync.calling_thread import Caller

if TYPE_CHECKING:
    import httpx2

    from volcano_locks.features.exclusive import OnHeld
    from volcano_locks.features.watch import Leadership
    from volcano_locks.protocol.lock_view import LockView, Page, State

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Client:
    """A connection to the lock service for code that blocks.

    `api_url` and `service_key` default to `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY`. `timeout_seconds` is the
    most one request may take; a verb sends at most two. `holder` is the label people see, by default
    `host/pid`. `transport` is any asynchronous httpx2 transport; requests run in the client's own event loop.
    """

    def __init__(
        self,
        api_url: str | None = None,
        service_key: str | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        holder: str | None = None,
        clock: Clock | None = None,
        transport: "httpx2.AsyncBaseTransport | None" = None,
    ) -> None:
        config = Config.resolve(api_url, service_key, timeout_seconds, holder)
        self._repr = f"{type(self).__name__}({config.api_url!r})"
        self.locks = Locks(config, clock or SystemClock(), HttpSender(config, transport))

    def close(self) -> None:
        """End the background thread and the connections. Blocks still open are renewed no more; the releases of
        those that are being left end first (bounded)."""
        self.locks._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return self._repr


class Locks:
    """The verbs. Each raises `VolcanoError`s for answers and `TypeError` or `ValueError` for bad arguments."""

    def __init__(self, config: Config, clock: Clock, sender: HttpSender) -> None:
        self._clock = clock
        self._sender = sender
        self._flows = LockFlows(clock.now, config.timeout_seconds)
        self._background = Background("volcano-locks", sender.aclose)
        plain = sender.direct and isinstance(clock, SystemClock)
        self._caller = Caller(config, clock, self._background) if plain else None

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

        `wait`: how many seconds to wait for the lock; `math.inf` for ever (SDK-11).

        `token` and `request_id` are UUIDs that the client makes unless you give them. Give and keep them to recover an
        acquire whose outcome is unknown: after a `TransportError` or an `UnavailableError` the client then sends no
        release, and the same call with the same two ids returns the lease (SDK-18). Without `token`, and with `wait`,
        the client releases what it may have acquired before it raises.
        """
        return self._run(self._flows.acquire(key, ttl, token, request_id, wait), undo=self._flows.give_back)

    def renew(self, key: str, lease: Lease, *, ttl: int | None = None, request_id: Uuid | None = None) -> Lease:
        """Renew `lease` of the lock `key` and return the lease that ends `ttl` seconds (default: its own) from now.

        Raises `LockOwnershipLostError` if the lease is lost. Raises `TypeError` if `lease` is not a `Lease`, and
        `ValueError` if it is one of another lock; nothing is sent then.

        Never renew a block's lease by hand: the block does not learn of it. Never shorten a lease after a renewal
        that timed out: a late duplicate of the shorter renewal may still land, after a longer one, and end the
        lease before the deadline you go by.
        """
        return self._run(self._flows.renew(key, lease, ttl, request_id))

    def release(self, key: str, lease: Lease, *, request_id: Uuid | None = None) -> None:
        """Release `lease` and so free the lock `key`; `LockOwnershipLostError` if another owner holds it by now.

        Raises `TypeError` if `lease` is not a `Lease`, and `ValueError` if it is one of another lock; nothing is sent
        then.
        """
        try:
            return self._run(self._flows.release(key, lease, request_id))
        except Exception:
            raise
        except BaseException:  # an interrupt, maybe before anything was sent (case 16)
            with contextlib.suppress(VolcanoError, TypeError, ValueError):
                self._run(self._flows.give_back(checked_lease(key, lease)))
            raise

    def get(self, key: str, *, request_id: Uuid | None = None) -> LockState:
        """Whether the lock is held, until when, and its fencing token."""
        return self._run(self._flows.get(key, request_id))

    def view(self, key: str, *, request_id: Uuid | None = None) -> "LockView":
        """Who holds the lock, since when and until when, and how many wait for it."""
        return self._run(self._flows.view(key, request_id))

    def list(self, prefix: str = "", *, state: "State" = "all") -> "Iterator[LockView]":
        """The locks whose keys begin with `prefix`, in the keys' order; `state` is `held`, `free` or `all`.

        They come in pages, each asked for when it is needed:

            for view in client.locks.list("reports:", state="held"):
                print(view.key, view.holder, view.expires_at)
        """
        return self._listed(self._flows.pages(prefix, state))

    def force_release(self, key: str, *, request_id: Uuid | None = None) -> None:
        """Free the lock whoever holds it. Its holder is told of the loss at its next renewal."""
        return self._run(self._flows.force_release(key, request_id))

    def with_lock(
        self,
        key: str,
        *,
        ttl: int,
        wait: float | None = None,
        hold_at_least: float | None = None,
        token: Uuid | None = None,
        request_id: Uuid | None = None,
    ) -> LockBlock:
        """A context manager: hold the lock, renewed in the background, while its body runs.

        Entering raises `LockHeldError` and the like, and the body does not run (case 18). The body is not
        interrupted by a loss: ask `guard.lost`, or `guard.raise_if_lost()`, before what must not be done twice.
        Once the block is being left the guard counts as lost, for a thread that outlives it.

        `wait`, `token` and `request_id` are `acquire`'s, but a block that cannot be entered always releases what it may
        have acquired. `hold_at_least`: a body that ends sooner leaves the lock taken until so many seconds after
        entering, for others that come a little late (SDK-12).
        """
        return self._block(self._flows.acquire(key, ttl, token, request_id, wait, for_block=True), hold_at_least)

    def _listed(self, pages: "Callable[[str | None], Flow[Page]]") -> "Iterator[LockView]":
        cursor: str | None = None
        while True:
            page = self._run(pages(cursor))
            yield from page.views
            cursor = page.next_cursor
            if cursor is None:
                return

    def lead(
        self, key: str, run: Callable[[LockGuard], T], *, ttl: int, stop: threading.Event | None = None
    ) -> T | None:
        """Wait for the lock, for ever, and run `run(guard)` in this thread while holding it; after a loss, again.

            def work(guard):
                while not guard.lost and not stop.wait(1):
                    plan_jobs(fencing_token=guard.fencing_token)

            client.locks.lead("scheduler", work, ttl=15, stop=stop)

        Gives back what `run` returned while it led, and raises what it raised, except the guard's own loss. `run` is
        not interrupted by a loss: it has to look, and the next campaign waits for it. Setting `stop` ends a campaign
        with None; while leading it is for `run` to look at (SDK-13).
        """
        from volcano_locks.features import leader  # noqa: PLC0415 - seldom needed

        def term() -> LockBlock:
            return self._block(self._flows.acquire(key, ttl, None, None, inf), None, stop)

        return leader.lead(term, run, stop)

    @overload
    def exclusive(
        self, key: str, *, ttl: int, on_held: 'Literal["raise", "wait"]' = ..., hold_at_least: float | None = ...
    ) -> "Callable[[Callable[P, R]], Callable[P, R]]": ...

    @overload
    def exclusive(
        self, key: str, *, ttl: int, on_held: 'Literal["skip"]', hold_at_least: float | None = ...
    ) -> "Callable[[Callable[P, R]], Callable[P, R | None]]": ...

    def exclusive(
        self, key: str, *, ttl: int, on_held: "OnHeld" = "raise", hold_at_least: float | None = None
    ) -> "Callable[[Callable[P, Any]], Callable[P, Any]]":
        """A decorator: the function runs under the lock that `key` names, a template of the function's arguments.

            @client.locks.exclusive("report-{day}", ttl=60, on_held="skip", hold_at_least=60)
            def report(day: str, guard: LockGuard | None = None) -> None: ...

        If the lock is held, a call raises `LockHeldError`, or by `on_held` is skipped (and gives None), or waits. An
        argument named `guard` that the caller leaves out is the block's guard. See `with_lock` for all else (SDK-16).
        """
        from volcano_locks.features import exclusive  # noqa: PLC0415 - seldom needed

        checked_ttl(ttl)
        checked_hold(hold_at_least)
        return exclusive.threaded(
            key, on_held, lambda key, wait: self.with_lock(key, ttl=ttl, wait=wait, hold_at_least=hold_at_least)
        )

    def watch(self, key: str) -> "Iterator[Leadership]":
        """The changes of who holds the lock: first how it is now, then each, for as long as you ask.

            for change in client.locks.watch("scheduler"):
                print(change.holder if change.held else "nobody", change.since)

        Goes on over broken connections and restarts; a refusal is raised. Never the same twice in a row (SDK-14).
        """
        from volcano_locks.features.watch import Watch  # noqa: PLC0415 - seldom needed

        changes = Watch(checked_key(key), self._flows, self._sender, self._clock).changes()
        return self._background.iterate(changes)

    def _block(
        self, acquire: Flow[Lease], hold_at_least: float | None, stop: threading.Event | None = None
    ) -> LockBlock:
        return LockBlock(Block(self._flows, self._sender, self._clock, acquire, hold_at_least), self._background, stop)

    def _run(self, flow: Flow[T], undo: Callable[[T], Flow[None]] | None = None) -> T:
        if self._caller is not None:
            return self._caller.run(flow, undo)
        return self._background.run(
            lambda: perform(flow, self._sender, self._clock),
            undo=None if undo is None else lambda result: perform(undo(result), self._sender, self._clock),
        )

    def _close(self) -> None:
        if self._caller is not None:
            self._caller.close()
        self._background.close()
