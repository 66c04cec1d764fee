"""What both targets of the Python client share: one client per actor, all under one clock that moves the server's.

A failure has its code and its classes. Codes beyond the service's own: `no_answer` if no response came, `bad_answer` if
it was not a lock service's, `argument` for an argument error, `body` and `cancelled` for an error of a block's body.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from math import inf
from typing import Any, Final, Protocol

import httpx2

from volcano_locks import Lease, LockState, VolcanoError
from volcano_locks.errors import LockHeldError, ServerError, TransportError
from volcano_locks.features.watch import Leadership
from volcano_locks.holding.guard import AsyncLockGuard, LockGuard
from volcano_locks.protocol.lock_view import LockView
from volcano_locks.testing import FakeLocks

from ..fault_proxy import ScriptedFault
from ..scenario.vocabulary import FOREVER
from .arguments import actor_and_key
from .client_clock import ClientClock
from .raw_http import ms_of
from .results import class_names, failure
from .scripted_transport import ScriptedTransport
from .server_harness import ServerHarness
from .target import Result

REAL_SECONDS_MAX: Final = 60.0
ARRIVAL_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.002
RESULT: Final = "the function's result"

TARGET_VERBS: Final = frozenset(
    {
        "outage",
        "outage_ends",
        "restart",
        "purge",
        "sent",
        "race",
        "pause_ms",
        "wait",
        "hang_up",
        "waited",
        "watch",
        "watched",
        "cut",
        "lead",
        "leading",
        "resign",
    }
)
ACTOR_VERBS: Final = frozenset(
    {"acquire", "renew", "release", "get", "force_release", "view", "list", "enter", "guard", "exit", "call", "nest"}
)
NAMES: Final = {"call": "exclusive_call"}


class BodyError(Exception):
    """Raised by a block's body if the scenario says so."""


class BodyCancelled(KeyboardInterrupt):
    """The interrupt that ends a block's body if the scenario says so."""


class Campaign:
    """A call of `lead`: how often its function started and ended, its latest fencing token, and how it must end."""

    def __init__(self) -> None:
        self.over: Future[Any] = Future()
        self.starts = 0
        self.ends = 0
        self.fencing_token: int | None = None
        self.stop: Final = threading.Event()
        self.ending: Final[Future[str]] = Future()

    def begin(self, guard: LockGuard | AsyncLockGuard) -> None:
        """Record a start of the function."""
        assert self.starts == self.ends, "two runs of one campaign overlap"
        assert not guard.lost, "the function starts with a lease that is lost"
        self.starts += 1
        self.fencing_token = guard.fencing_token

    def end(self) -> str:
        """The function's result, when the scenario ends it."""
        if self.ending.result() == "raises":
            raise BodyError("the function's own error")
        return RESULT


class Backend(Protocol):
    """The server behind the clients."""

    url: str
    service_key: str
    clock: ClientClock

    def now_ms(self) -> int: ...
    def transport(self) -> httpx2.AsyncBaseTransport: ...
    def restart(self) -> Result: ...
    def purge(self) -> Result: ...
    def close(self) -> None: ...


class ServerBackend:
    """A listening server, whose clock follows the clients'."""

    def __init__(self, harness: ServerHarness) -> None:
        self._harness: Final = harness
        self.url = harness.url
        self.service_key = harness.service_key
        self.clock = ClientClock(harness)

    def now_ms(self) -> int:
        return self._harness.clock.now_ms()

    def transport(self) -> httpx2.AsyncBaseTransport:
        return self._harness.transport()

    def restart(self) -> Result:
        return self._harness.restart()

    def purge(self) -> Result:
        return self._harness.purge()

    def close(self) -> None:
        self._harness.close()


class FakeBackend:
    """The fake that the client ships for its users' tests (SDK-10)."""

    def __init__(self) -> None:
        self.clock = ClientClock()
        self._fake: Final = FakeLocks(self.clock)
        self.url = "http://fake.invalid"
        self.service_key = "sk-fake"

    def now_ms(self) -> int:
        return ms_of(self.clock.utc_now())

    def transport(self) -> httpx2.AsyncBaseTransport:
        return self._fake

    def restart(self) -> Result:
        raise NotImplementedError

    def purge(self) -> Result:
        raise NotImplementedError

    def close(self) -> None:
        return


class PythonClientTarget(ABC):
    """The verbs of a client. Each subclass makes the calls and enters and leaves the blocks of its own client."""

    makes_tokens = True

    def __init__(self, backend: Backend) -> None:
        self._backend: Final = backend
        self._clock: Final = backend.clock
        self._faults: Final[list[ScriptedFault]] = []
        self._transports: Final[dict[str, ScriptedTransport]] = {}
        self._leases: Final[dict[str, Lease]] = {}
        self._waits: Final[dict[tuple[str, str], tuple[Future[Any], str]]] = {}
        self._watches: Final[dict[tuple[str, str], tuple[Future[Any], list[Leadership]]]] = {}
        self._campaigns: Final[dict[tuple[str, str], Campaign]] = {}

    # --- what each client does in its own way ---

    @abstractmethod
    def _call(self, actor: str, name: str, *args: object, **options: object) -> object:
        """`client.locks.name(…)` of the actor's client."""

    @abstractmethod
    def _start_call(self, actor: str, name: str, *args: object, **options: object) -> Future[Any]:
        """`_call` in the background, tracked by the clock as a wait."""

    @abstractmethod
    def _cancel(self, actor: str, over: Future[Any]) -> None:
        """Cancel what the actor started, as far as the language can. Returns when it has ended."""

    @abstractmethod
    def _views(self, actor: str, prefix: str, state: str) -> list[LockView]: ...

    @abstractmethod
    def _race(self, args: Mapping[str, object]) -> Result: ...

    @abstractmethod
    def _start_block(self, args: Mapping[str, object]) -> Future[Any]:
        """Enter a block, tracked by the clock as a wait. The future's result is the guard."""

    @abstractmethod
    def _guard(self, args: Mapping[str, object]) -> Result: ...

    @abstractmethod
    def _leave_block(self, args: Mapping[str, object]) -> None:
        """Leave a block. Raises what the block raises."""

    @abstractmethod
    def _start_watch(self, actor: str, key: str, seen: list[Leadership]) -> Future[Any]:
        """Start a `watch` that appends to `seen`, tracked by the clock as a wait."""

    @abstractmethod
    def _start_campaign(self, actor: str, key: str, ttl_seconds: int, campaign: Campaign) -> Future[Any]:
        """Start `lead`, tracked by the clock as a wait. Its function runs until `campaign.ending`."""

    @abstractmethod
    def _stop(self, campaign: Campaign) -> None:
        """End the campaign from outside, as the language can."""

    @abstractmethod
    def _start_exclusive_call(
        self, actor: str, key: str, run: Callable[[LockGuard | AsyncLockGuard], None], options: dict[str, Any]
    ) -> Future[Any]:
        """Call a function made by `exclusive`, tracked by the clock as a wait."""

    @abstractmethod
    def _start_nested_blocks(self, args: Mapping[str, object]) -> Future[Any]:
        """Enter a block and, in its body, another one on the same key, tracked by the clock as a wait. The future's
        result is that of the inner block.
        """

    # --- the target ---

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        if verb in ACTOR_VERBS:
            return self._blocking_verb(verb, args)
        assert verb in TARGET_VERBS, f"this target does not know the verb {verb}"
        return getattr(self, f"_{verb}")(args)  # type: ignore[no-any-return]

    def advance(self, ms: int) -> None:
        target_ms = self._backend.now_ms() + ms
        self._clock.advance(ms / 1_000)
        assert self._backend.now_ms() == target_ms

    def now_ms(self) -> int:
        return self._backend.now_ms()

    # --- the verbs of the target ---

    def _outage(self, args: Mapping[str, object]) -> Result:
        fault = ScriptedFault.from_args(args)
        if fault.lasts_ms is not None:
            fault.until = self._clock.now() + fault.lasts_ms / 1_000
        self._faults.append(fault)
        return {}

    def _outage_ends(self, _args: Mapping[str, object]) -> Result:
        self._faults.clear()
        return {}

    def _restart(self, _args: Mapping[str, object]) -> Result:
        result = self._backend.restart()
        self._clock.settle()
        return result

    def _purge(self, _args: Mapping[str, object]) -> Result:
        return self._backend.purge()

    def _pause_ms(self, args: Mapping[str, object]) -> Result:
        self._clock.jump(int(str(args["value"])) / 1_000)
        self._clock.settle()
        return {}

    def _wait(self, args: Mapping[str, object]) -> Result:
        acquiring = self._start_call(str(args["actor"]), "acquire", args["key"], **self._acquire_arguments(args))
        self._waits[actor_and_key(args)] = acquiring, str(args["lease"])
        self._clock.settle()
        return {}

    def _hang_up(self, args: Mapping[str, object]) -> Result:
        self._cancel(str(args["actor"]), self._waits[actor_and_key(args)][0])
        self._clock.settle()
        return {}

    def _waited(self, args: Mapping[str, object]) -> Result:
        """The result of a wait, if it is over."""
        self._clock.settle()
        acquiring, lease = self._waits[actor_and_key(args)]
        if not acquiring.done():
            return {"pending": True}
        return self._result_of(lambda: self._keep_lease({"lease": lease}, acquiring.result()))

    def _watch(self, args: Mapping[str, object]) -> Result:
        seen: list[Leadership] = []
        over = self._start_watch(str(args["actor"]), str(args["key"]), seen)
        self._watches[actor_and_key(args)] = over, seen
        self._wait_until(lambda: bool(seen) or over.done())
        self._clock.settle()
        return {}

    def _watched(self, args: Mapping[str, object]) -> Result:
        """The changes since the last call."""
        self._clock.settle()
        over, seen = self._watches[actor_and_key(args)]
        self._wait_until(lambda: len(seen) >= int(str(args.get("count", 0))) or over.done())
        if over.done():
            return self._result_of(lambda: over.result() or {"error": "ended"})
        taken, seen[:] = list(seen), []
        return {"changes": [_change_result(one) for one in taken]}

    def _cut(self, args: Mapping[str, object]) -> Result:
        self._transport(str(args["actor"])).cut()
        self._clock.settle()
        return {}

    def _lead(self, args: Mapping[str, object]) -> Result:
        campaign = self._campaigns[actor_and_key(args)] = Campaign()
        ttl_seconds = int(str(args["ttl_seconds"]))
        campaign.over = self._start_campaign(str(args["actor"]), str(args["key"]), ttl_seconds, campaign)
        self._clock.settle()
        return {}

    def _leading(self, args: Mapping[str, object]) -> Result:
        self._clock.settle()
        campaign = self._campaigns[actor_and_key(args)]
        starts, ends = (int(str(args.get(word, 0))) for word in ("starts", "ends"))
        self._wait_until(lambda: campaign.starts >= starts and campaign.ends >= ends)
        self._clock.settle()
        result = {"starts": campaign.starts, "ends": campaign.ends}
        return result if campaign.fencing_token is None else {**result, "fencing_token": campaign.fencing_token}

    def _resign(self, args: Mapping[str, object]) -> Result:
        """End a campaign, through its function or from outside."""
        campaign, how = self._campaigns[actor_and_key(args)], str(args.get("body", "returns"))
        if how == "cancelled":
            self._stop(campaign)
        else:
            campaign.ending.set_result(how)
        campaign.over.exception(REAL_SECONDS_MAX)
        self._clock.settle()
        return self._result_of(lambda: _campaign_result(campaign.over.result(), how))

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, or after ARRIVAL_SECONDS_MAX of real time."""
        deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    # --- the verbs of an actor ---

    def _blocking_verb(self, verb: str, args: Mapping[str, object]) -> Result:
        """A verb that the actor waits for."""
        transport = self._transport(str(args["actor"]))
        transport.blocking = not args.get("wait_seconds") and verb not in ("call", "nest")
        try:
            return self._result_of(lambda: getattr(self, f"_{NAMES.get(verb, verb)}")(args))
        finally:
            transport.blocking = False
            self._clock.settle()

    def _result_of(self, perform: Callable[[], Result]) -> Result:
        """The result of `perform`, or of the failure that it raises."""
        try:
            return perform()
        except VolcanoError as error:
            return failure_result(error)
        except BodyError as error:
            return {"error": "body", **_attached_error(error)}
        except BodyCancelled as error:
            return {"error": "cancelled", **_attached_error(error)}

    def _acquire(self, args: Mapping[str, object]) -> Result:
        if "spelling" in args:
            return self._acquire_with_spelling(args)
        actor, key = str(args["actor"]), args["key"]
        if not args.get("wait_seconds"):
            return self._keep_lease(args, self._call(actor, "acquire", key, **self._acquire_arguments(args)))
        acquiring = self._start_call(actor, "acquire", key, **self._acquire_arguments(args))
        self._clock.advance_until(acquiring)
        return self._keep_lease(args, acquiring.result())

    def _acquire_with_spelling(self, args: Mapping[str, object]) -> Result:
        """An acquire with ids in another spelling. `ids_kept`: the lease or the error shows them as passed."""
        try:
            lease = self._call(str(args["actor"]), "acquire", args["key"], **self._acquire_arguments(args))
        except VolcanoError as error:
            return {**failure_result(error), "ids_kept": error.request_id == args["request_id"]}
        result = self._keep_lease(args, lease)
        return {**result, "ids_kept": self._lease(args).token == args["token"]}

    def _renew(self, args: Mapping[str, object]) -> Result:
        if "given" in args:
            return self._renew_or_release_wrongly("renew", args, ttl=args["ttl_seconds"])
        renewed = self._call(str(args["actor"]), "renew", args["key"], self._lease(args), ttl=args["ttl_seconds"])
        return self._keep_lease(args, renewed)

    def _release(self, args: Mapping[str, object]) -> Result:
        if "given" in args:
            return self._renew_or_release_wrongly("release", args)
        self._call(str(args["actor"]), "release", args["key"], self._lease(args))
        return {}

    def _renew_or_release_wrongly(self, name: str, args: Mapping[str, object], **options: object) -> Result:
        """Call with another lock's key, or with something that is not a lease."""
        another_key = args["given"] == "another_key"
        key = f"another-{args['key']}" if another_key else args["key"]
        lease: object = self._lease(args) if another_key else {"ttl": args["ttl_seconds"]}
        try:
            self._call(str(args["actor"]), name, key, lease, **options)
        except (TypeError, ValueError) as error:
            return {**failure("argument"), "error_classes": class_names(error)}
        return {}

    def _get(self, args: Mapping[str, object]) -> Result:
        return _state_result(self._call(str(args["actor"]), "get", args["key"]))

    def _force_release(self, args: Mapping[str, object]) -> Result:
        self._call(str(args["actor"]), "force_release", args["key"])
        return {}

    def _view(self, args: Mapping[str, object]) -> Result:
        return _view_result(self._call(str(args["actor"]), "view", args["key"]))

    def _list(self, args: Mapping[str, object]) -> Result:
        views = self._views(str(args["actor"]), str(args["prefix"]), str(args["state"]))
        return {"keys": [view.key for view in views]}

    def _enter(self, args: Mapping[str, object]) -> Result:
        entering = self._start_block(args)
        if args.get("wait_seconds"):
            self._clock.advance_until(entering)
        return guard_result(entering.result(REAL_SECONDS_MAX))

    def _exit(self, args: Mapping[str, object]) -> Result:
        self._leave_block(args)
        return {}

    def _exclusive_call(self, args: Mapping[str, object]) -> Result:
        result: dict[str, object] = {"ran": False}

        def run(guard: LockGuard | AsyncLockGuard) -> None:
            result.update(ran=True, fencing_token=guard.fencing_token)
            if args.get("body") == "raises":
                raise BodyError("the function's own error")

        options = {
            "ttl": args["ttl_seconds"],
            "on_held": args.get("on_held", "raise"),
            "hold_at_least": seconds_of(args.get("hold_at_least_seconds")),
        }
        calling = self._start_exclusive_call(str(args["actor"]), str(args["key"]), run, options)
        if args.get("on_held") == "wait":  # else nothing is due, and a renewer's next wait would count as idle
            self._clock.advance_until(calling)
        calling.result(REAL_SECONDS_MAX)
        return result

    def _nest(self, args: Mapping[str, object]) -> Result:
        nested = self._start_nested_blocks(args)
        self._clock.advance_until(nested)
        return nested.result()  # type: ignore[no-any-return]

    def _acquire_arguments(self, args: Mapping[str, object]) -> dict[str, Any]:
        """The options of an acquire. A known lease's token is used again, in the spelling passed if any."""
        known, token = self._leases.get(str(args["lease"])), args["token"]
        if known is not None and str(token).lower() != known.token.lower():
            token = known.token
        options = {"ttl": args["ttl_seconds"], "token": token, "wait": seconds_of(args.get("wait_seconds"))}
        return options | ({"request_id": args["request_id"]} if "request_id" in args else {})

    def _transport(self, actor: str) -> ScriptedTransport:
        if actor not in self._transports:
            inner = self._backend.transport()
            self._transports[actor] = ScriptedTransport(actor, inner, self._clock, self._faults)
        return self._transports[actor]

    def _sent(self, args: Mapping[str, object]) -> Result:
        """The number of requests of each kind that the actor's client sent since the last call."""
        return self._transport(str(args["actor"])).sent.take()

    def _keep_lease(self, args: Mapping[str, object], lease: object) -> Result:
        assert isinstance(lease, Lease)
        self._leases[str(args["lease"])] = lease
        return lease_result(lease)

    def _lease(self, args: Mapping[str, object]) -> Lease:
        return self._leases[str(args["lease"])]


def seconds_of(value: object) -> float | None:
    """Seconds as the client takes them; infinite for `forever`."""
    return None if value is None else inf if value == FOREVER else float(str(value))


def block_options(args: Mapping[str, object]) -> dict[str, Any]:
    """The options of a block."""
    options = {
        "ttl": args["ttl_seconds"],
        "token": args.get("token"),
        "wait": seconds_of(args.get("wait_seconds")),
        "hold_at_least": seconds_of(args.get("hold_at_least_seconds")),
    }
    return options | ({"renew_every": args["renew_every_seconds"]} if "renew_every_seconds" in args else {})


def lease_result(lease: Lease) -> Result:
    """A lease as a result."""
    return {"expires_at_ms": ms_of(lease.expires_at), "fencing_token": lease.fencing_token}


def guard_result(guard: LockGuard | AsyncLockGuard) -> Result:
    """A guard's state as a result."""
    return {"lost": guard.lost, **lease_result(guard.lease)}


def _state_result(state: object) -> Result:
    assert isinstance(state, LockState)
    if not state.held:
        return {"held": False}
    assert state.expires_at is not None
    assert state.fencing_token is not None
    return {"held": True, "expires_at_ms": ms_of(state.expires_at), "fencing_token": state.fencing_token}


def _view_result(view: object) -> Result:
    assert isinstance(view, LockView)
    fields = {word: getattr(view, word) for word in ("held", "holder", "fencing_token", "ttl_seconds", "waiters")}
    instants = {"acquired": view.acquired_at, "renewed": view.renewed_at, "expires": view.expires_at}
    return fields | {f"{word}_at_ms": ms_of(at) for word, at in instants.items() if at is not None}


def _change_result(change: Leadership) -> Result:
    fields = {"held": change.held, "holder": change.holder, "fencing_token": change.fencing_token}
    return {**fields, "at_ms": None if change.since is None else ms_of(change.since)}


def _campaign_result(result: object, how: str) -> Result:
    """The result of a campaign that raised nothing. One that was stopped from outside returns None."""
    assert result == (RESULT if how == "returns" else None), f"lead returned {result!r}"
    return {} if how == "returns" else {"error": "cancelled"}


def failure_result(error: VolcanoError) -> Result:
    result = {**failure(_code_of(error), error.retry_after), "error_classes": class_names(error)}
    if not isinstance(error, LockHeldError):
        return result
    expires_at_ms = None if error.expires_at is None else ms_of(error.expires_at)
    return {**result, "holder": error.holder, "expires_at_ms": expires_at_ms, "fencing_token": error.fencing_token}


def _code_of(error: VolcanoError) -> str:
    if isinstance(error, TransportError):
        return "no_answer"
    if error.code is None and isinstance(error, ServerError):
        return "bad_answer"
    return str(error.code)


def _attached_error(error: BaseException) -> Result:
    """The class of the error that is attached to the body's error."""
    notes = [note.partition(":")[0] for note in getattr(error, "__notes__", [])]
    return {"attached": notes[0]} if notes else {}
