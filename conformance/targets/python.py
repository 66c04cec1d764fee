"""What the faces of the Python client share: one client per actor, all under one clock that moves the server's.

A failure is told by its code and its classes; `no_answer` where no answer came, `bad_answer` where it was none of a
lock service, `argument` for an argument error, `body` and `cancelled` where a block ended with the body's own error.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from math import inf
from typing import Any, Final, Protocol
from uuid import UUID

import httpx2

from volcano_locks import Lease, LockState, VolcanoError
from volcano_locks.errors import ServerError, TransportError
from volcano_locks.features.watch import Leadership
from volcano_locks.holding.guard import AsyncLockGuard, LockGuard
from volcano_locks.protocol.lock_view import LockView
from volcano_locks.testing import FakeLocks

from ..scenario.vocabulary import FOREVER
from .clock import FaceClock
from .failures import classes_of, failure
from .faulty_transport import OPERATIONS, STREAM, Outage, OutageTransport
from .http import ms_of
from .server_harness import House
from .service import place_of
from .target import Answer

REAL_SECONDS_MAX: Final = 60.0
ARRIVAL_SECONDS_MAX: Final = 10.0
LOOK_SECONDS: Final = 0.002
RESULT: Final = "the function's result"

OF_THE_FACE: Final = frozenset(
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
OF_AN_ACTOR: Final = frozenset(
    {"acquire", "renew", "release", "get", "force_release", "view", "list", "enter", "guard", "exit", "call"}
)
NAMES: Final = {"call": "call_exclusive"}


class BodyError(Exception):
    """What the body of a block raises where a scenario says so."""


class BodyCancelled(KeyboardInterrupt):
    """The interrupt that ends the body of a block where a scenario says so."""


class Campaign:
    """A `lead`: how often its function was begun and ended, under which fencing token last, and how it is to end."""

    def __init__(self) -> None:
        self.over: Future[Any] = Future()
        self.starts = 0
        self.ends = 0
        self.fencing_token: int | None = None
        self.stop: Final = threading.Event()
        self.ending: Final[Future[str]] = Future()

    def begin(self, guard: LockGuard | AsyncLockGuard) -> None:
        """The function starts."""
        assert self.starts == self.ends, "two runs of one campaign overlap"
        assert not guard.lost, "the function starts with a lease that is lost"
        self.starts += 1
        self.fencing_token = guard.fencing_token

    def end(self) -> str:
        """What the function gives when it is told to end."""
        if self.ending.result() == "raises":
            raise BodyError("the function's own error")
        return RESULT


class Backend(Protocol):
    """The server behind the clients."""

    url: str
    service_key: str
    clock: FaceClock

    def now_ms(self) -> int: ...
    def transport(self) -> httpx2.AsyncBaseTransport: ...
    def restart(self) -> Answer: ...
    def purge(self) -> Answer: ...
    def close(self) -> None: ...


class RealBackend:
    """A listening house, whose clock follows the clients'."""

    def __init__(self, house: House) -> None:
        self._house: Final = house
        self.url = house.url
        self.service_key = house.service_key
        self.clock = FaceClock(house)

    def now_ms(self) -> int:
        return self._house.clock.now_ms()

    def transport(self) -> httpx2.AsyncBaseTransport:
        return self._house.transport()

    def restart(self) -> Answer:
        return self._house.restart()

    def purge(self) -> Answer:
        return self._house.purge()

    def close(self) -> None:
        self._house.close()


class FakeBackend:
    """The fake that the client ships for its users' tests (SDK-10)."""

    def __init__(self) -> None:
        self.clock = FaceClock()
        self._fake: Final = FakeLocks(self.clock)
        self.url = "http://fake.invalid"
        self.service_key = "sk-fake"

    def now_ms(self) -> int:
        return ms_of(self.clock.utc_now())

    def transport(self) -> httpx2.AsyncBaseTransport:
        return self._fake

    def restart(self) -> Answer:
        raise NotImplementedError

    def purge(self) -> Answer:
        raise NotImplementedError

    def close(self) -> None:
        return


class PythonFace(ABC):
    """The verbs of a client; how a call is made and how a block is entered and left is each client's own."""

    makes_tokens = True

    def __init__(self, backend: Backend) -> None:
        self._backend: Final = backend
        self._clock: Final = backend.clock
        self._outages: Final[list[Outage]] = []
        self._transports: Final[dict[str, OutageTransport]] = {}
        self._leases: Final[dict[str, Lease]] = {}
        self._waits: Final[dict[tuple[str, str], tuple[Future[Any], str]]] = {}
        self._watches: Final[dict[tuple[str, str], tuple[Future[Any], list[Leadership]]]] = {}
        self._campaigns: Final[dict[tuple[str, str], Campaign]] = {}

    # --- each client's own ---

    @abstractmethod
    def _call(self, actor: str, name: str, *args: object, **options: object) -> object:
        """`client.locks.name(…)` of the actor's client."""

    @abstractmethod
    def _begin(self, actor: str, name: str, *args: object, **options: object) -> Future[Any]:
        """`_call` that goes on while others act, as a wait of the clock."""

    @abstractmethod
    def _break_off(self, actor: str, over: Future[Any]) -> None:
        """Have the actor give up what it began, as far as the language can; return when it has."""

    @abstractmethod
    def _views(self, actor: str, prefix: str, state: str) -> list[LockView]: ...

    @abstractmethod
    def _race(self, args: Mapping[str, object]) -> Answer: ...

    @abstractmethod
    def _begin_block(self, args: Mapping[str, object]) -> Future[Any]:
        """A block, entered as a wait of the clock. It ends with its guard."""

    @abstractmethod
    def _guard(self, args: Mapping[str, object]) -> Answer: ...

    @abstractmethod
    def _leave(self, args: Mapping[str, object]) -> None:
        """Leave a block; raises what it raises."""

    @abstractmethod
    def _follow(self, actor: str, key: str, seen: list[Leadership]) -> Future[Any]:
        """A `watch` that puts what it sees into `seen`, as a wait of the clock."""

    @abstractmethod
    def _begin_campaign(self, actor: str, key: str, ttl_seconds: int, campaign: Campaign) -> Future[Any]:
        """A `lead` as a wait of the clock, whose function runs until `campaign.ending`."""

    @abstractmethod
    def _stop(self, campaign: Campaign) -> None:
        """End it from outside, as the language can."""

    @abstractmethod
    def _begin_call(
        self, actor: str, key: str, run: Callable[[LockGuard | AsyncLockGuard], None], options: dict[str, Any]
    ) -> Future[Any]:
        """A call of a function made by `exclusive`, as a wait of the clock."""

    # --- the face ---

    def do(self, verb: str, args: Mapping[str, object]) -> Answer:
        if verb in OF_AN_ACTOR:
            return self._blocking(verb, args)
        assert verb in OF_THE_FACE, f"this face does not know the verb {verb}"
        return getattr(self, f"_{verb}")(args)  # type: ignore[no-any-return]

    def advance(self, ms: int) -> None:
        target_ms = self._backend.now_ms() + ms
        self._clock.advance(ms / 1_000)
        assert self._backend.now_ms() == target_ms

    def now_ms(self) -> int:
        return self._backend.now_ms()

    # --- the verbs of the face ---

    def _outage(self, args: Mapping[str, object]) -> Answer:
        self._outages.append(Outage.told(args))
        return {}

    def _outage_ends(self, _args: Mapping[str, object]) -> Answer:
        self._outages.clear()
        return {}

    def _restart(self, _args: Mapping[str, object]) -> Answer:
        answer = self._backend.restart()
        self._clock.settle()
        return answer

    def _purge(self, _args: Mapping[str, object]) -> Answer:
        return self._backend.purge()

    def _pause_ms(self, args: Mapping[str, object]) -> Answer:
        self._clock.jump(int(str(args["value"])) / 1_000)
        self._clock.settle()
        return {}

    def _wait(self, args: Mapping[str, object]) -> Answer:
        asking = self._begin(str(args["actor"]), "acquire", args["key"], **self._taking(args))
        self._waits[place_of(args)] = asking, str(args["lease"])
        self._clock.settle()
        return {}

    def _hang_up(self, args: Mapping[str, object]) -> Answer:
        self._break_off(str(args["actor"]), self._waits[place_of(args)][0])
        self._clock.settle()
        return {}

    def _waited(self, args: Mapping[str, object]) -> Answer:
        """What came of a wait, if it is over."""
        self._clock.settle()
        asking, lease = self._waits[place_of(args)]
        if not asking.done():
            return {"pending": True}
        return self._told(lambda: self._keep({"lease": lease}, asking.result()))

    def _watch(self, args: Mapping[str, object]) -> Answer:
        seen: list[Leadership] = []
        over = self._follow(str(args["actor"]), str(args["key"]), seen)
        self._watches[place_of(args)] = over, seen
        self._until(lambda: bool(seen) or over.done())
        self._clock.settle()
        return {}

    def _watched(self, args: Mapping[str, object]) -> Answer:
        """The changes seen since this was last asked."""
        self._clock.settle()
        over, seen = self._watches[place_of(args)]
        self._until(lambda: len(seen) >= int(str(args.get("count", 0))) or over.done())
        if over.done():
            return self._told(lambda: over.result() or {"error": "ended"})
        taken, seen[:] = list(seen), []
        return {"changes": [_change_told(one) for one in taken]}

    def _cut(self, args: Mapping[str, object]) -> Answer:
        self._transport(str(args["actor"])).cut()
        self._clock.settle()
        return {}

    def _lead(self, args: Mapping[str, object]) -> Answer:
        campaign = self._campaigns[place_of(args)] = Campaign()
        ttl_seconds = int(str(args["ttl_seconds"]))
        campaign.over = self._begin_campaign(str(args["actor"]), str(args["key"]), ttl_seconds, campaign)
        self._clock.settle()
        return {}

    def _leading(self, args: Mapping[str, object]) -> Answer:
        self._clock.settle()
        campaign = self._campaigns[place_of(args)]
        starts, ends = (int(str(args.get(word, 0))) for word in ("starts", "ends"))
        self._until(lambda: campaign.starts >= starts and campaign.ends >= ends)
        self._clock.settle()
        told = {"starts": campaign.starts, "ends": campaign.ends}
        return told if campaign.fencing_token is None else {**told, "fencing_token": campaign.fencing_token}

    def _resign(self, args: Mapping[str, object]) -> Answer:
        """End a campaign: by what its function does, or from outside."""
        campaign, how = self._campaigns[place_of(args)], str(args.get("body", "returns"))
        if how == "cancelled":
            self._stop(campaign)
        else:
            campaign.ending.set_result(how)
        campaign.over.exception(REAL_SECONDS_MAX)
        self._clock.settle()
        return self._told(lambda: _outcome_told(campaign.over.result(), how))

    def _until(self, is_so: Callable[[], bool]) -> None:
        """Return once it is so, or real seconds are over."""
        give_up = time.monotonic() + ARRIVAL_SECONDS_MAX
        while not is_so() and time.monotonic() < give_up:
            time.sleep(LOOK_SECONDS)

    # --- the verbs of an actor ---

    def _blocking(self, verb: str, args: Mapping[str, object]) -> Answer:
        """A verb that the actor waits for."""
        transport = self._transport(str(args["actor"]))
        transport.blocking = not args.get("wait_seconds") and verb != "call"
        try:
            return self._told(lambda: getattr(self, f"_{NAMES.get(verb, verb)}")(args))
        finally:
            transport.blocking = False
            self._clock.settle()

    def _told(self, perform: Callable[[], Answer]) -> Answer:
        """What comes of it, also of its failure."""
        try:
            return perform()
        except VolcanoError as error:
            return _failed(error)
        except BodyError as error:
            return {"error": "body", **_attached_to(error)}
        except BodyCancelled as error:
            return {"error": "cancelled", **_attached_to(error)}

    def _acquire(self, args: Mapping[str, object]) -> Answer:
        if "spelling" in args:
            return self._acquire_spelled(args)
        actor, key = str(args["actor"]), args["key"]
        if not args.get("wait_seconds"):
            return self._keep(args, self._call(actor, "acquire", key, **self._taking(args)))
        asking = self._begin(actor, "acquire", key, **self._taking(args))
        self._clock.go_on_until(asking)
        return self._keep(args, asking.result())

    def _acquire_spelled(self, args: Mapping[str, object]) -> Answer:
        """An acquire with ids in another spelling: whether the lease or the error shows them as they were given."""
        try:
            lease = self._call(str(args["actor"]), "acquire", args["key"], **self._taking(args))
        except VolcanoError as error:
            return {**_failed(error), "ids_kept": error.request_id == args["request_id"]}
        told = self._keep(args, lease)
        return {**told, "ids_kept": self._lease(args).token == args["token"]}

    def _renew(self, args: Mapping[str, object]) -> Answer:
        if "given" in args:
            return self._misused("renew", args, ttl=args["ttl_seconds"])
        renewed = self._call(str(args["actor"]), "renew", args["key"], self._lease(args), ttl=args["ttl_seconds"])
        return self._keep(args, renewed)

    def _release(self, args: Mapping[str, object]) -> Answer:
        if "given" in args:
            return self._misused("release", args)
        self._call(str(args["actor"]), "release", args["key"], self._lease(args))
        return {}

    def _misused(self, name: str, args: Mapping[str, object], **options: object) -> Answer:
        """The call with the key of another lock, or with something that is not a lease."""
        another_key = args["given"] == "another_key"
        key = f"another-{args['key']}" if another_key else args["key"]
        lease: object = self._lease(args) if another_key else {"ttl": args["ttl_seconds"]}
        try:
            self._call(str(args["actor"]), name, key, lease, **options)
        except (TypeError, ValueError) as error:
            return {**failure("argument"), "error_classes": classes_of(error)}
        return {}

    def _get(self, args: Mapping[str, object]) -> Answer:
        return _state_told(self._call(str(args["actor"]), "get", args["key"]))

    def _force_release(self, args: Mapping[str, object]) -> Answer:
        self._call(str(args["actor"]), "force_release", args["key"])
        return {}

    def _view(self, args: Mapping[str, object]) -> Answer:
        return _view_told(self._call(str(args["actor"]), "view", args["key"]))

    def _list(self, args: Mapping[str, object]) -> Answer:
        views = self._views(str(args["actor"]), str(args["prefix"]), str(args["state"]))
        return {"keys": [view.key for view in views]}

    def _enter(self, args: Mapping[str, object]) -> Answer:
        entering = self._begin_block(args)
        if args.get("wait_seconds"):
            self._clock.go_on_until(entering)
        return guard_told(entering.result(REAL_SECONDS_MAX))

    def _exit(self, args: Mapping[str, object]) -> Answer:
        self._leave(args)
        return {}

    def _call_exclusive(self, args: Mapping[str, object]) -> Answer:
        told: dict[str, object] = {"ran": False}

        def run(guard: LockGuard | AsyncLockGuard) -> None:
            told.update(ran=True, fencing_token=guard.fencing_token)
            if args.get("body") == "raises":
                raise BodyError("the function's own error")

        options = {
            "ttl": args["ttl_seconds"],
            "on_held": args.get("on_held", "raise"),
            "hold_at_least": seconds_of(args.get("hold_at_least_seconds")),
        }
        calling = self._begin_call(str(args["actor"]), str(args["key"]), run, options)
        self._clock.go_on_until(calling)
        calling.result()
        return told

    def _taking(self, args: Mapping[str, object]) -> dict[str, Any]:
        """The options of an acquire: the token of a lease that is known is used again, in the spelling given if any."""
        known, token = self._leases.get(str(args["lease"])), args["token"]
        if known is not None and str(token).lower() != known.token.lower():
            token = known.token
        options = {"ttl": args["ttl_seconds"], "token": token, "wait": seconds_of(args.get("wait_seconds"))}
        return options | ({"request_id": args["request_id"]} if "request_id" in args else {})

    def _transport(self, actor: str) -> OutageTransport:
        if actor not in self._transports:
            inner = self._backend.transport()
            self._transports[actor] = OutageTransport(actor, inner, self._clock, self._outages)
        return self._transports[actor]

    def _sent(self, args: Mapping[str, object]) -> Answer:
        """What the actor's client sent since this was last asked."""
        sent = self._transport(str(args["actor"])).sent
        told: dict[str, object] = dict.fromkeys((*OPERATIONS.values(), STREAM), 0)
        told |= {one: sum(other.operation == one for other in sent) for one in told}
        tokens = {one.token.lower() for one in sent if one.token is not None}
        assert all(str(UUID(token)) == token for token in tokens)
        told |= {"tokens": len(tokens), "request_ids": len({str(one.request_id).lower() for one in sent})}
        sent.clear()
        return told

    def _keep(self, args: Mapping[str, object], lease: object) -> Answer:
        assert isinstance(lease, Lease)
        self._leases[str(args["lease"])] = lease
        return lease_told(lease)

    def _lease(self, args: Mapping[str, object]) -> Lease:
        return self._leases[str(args["lease"])]


def seconds_of(told: object) -> float | None:
    """How long to wait or to hold on."""
    return None if told is None else inf if told == FOREVER else float(str(told))


def block_options(args: Mapping[str, object]) -> dict[str, Any]:
    """The options of a block."""
    return {
        "ttl": args["ttl_seconds"],
        "token": args["token"],
        "wait": seconds_of(args.get("wait_seconds")),
        "hold_at_least": seconds_of(args.get("hold_at_least_seconds")),
    }


def lease_told(lease: Lease) -> Answer:
    """A lease as an answer."""
    return {"expires_at_ms": ms_of(lease.expires_at), "fencing_token": lease.fencing_token}


def guard_told(guard: LockGuard | AsyncLockGuard) -> Answer:
    """What a guard shows."""
    return {"lost": guard.lost, **lease_told(guard.lease)}


def _state_told(state: object) -> Answer:
    assert isinstance(state, LockState)
    if not state.held:
        return {"held": False}
    assert state.expires_at is not None
    assert state.fencing_token is not None
    return {"held": True, "expires_at_ms": ms_of(state.expires_at), "fencing_token": state.fencing_token}


def _view_told(view: object) -> Answer:
    assert isinstance(view, LockView)
    told: dict[str, object] = {word: getattr(view, word) for word in ("held", "holder", "fencing_token", "ttl_seconds")}
    instants = {"acquired": view.acquired_at, "renewed": view.renewed_at, "expires": view.expires_at}
    told |= {f"{word}_at_ms": ms_of(at) for word, at in instants.items() if at is not None}
    return {**told, "waiters": view.waiters}


def _change_told(change: Leadership) -> Answer:
    told = {"held": change.held, "holder": change.holder, "fencing_token": change.fencing_token}
    return {**told, "at_ms": None if change.since is None else ms_of(change.since)}


def _outcome_told(result: object, how: str) -> Answer:
    """How a campaign ended that raised nothing. One that was stopped from outside gives no result."""
    assert result == (RESULT if how == "returns" else None), f"lead gives {result!r}"
    return {} if how == "returns" else {"error": "cancelled"}


def _failed(error: VolcanoError) -> Answer:
    return {**failure(_code_of(error), error.retry_after), "error_classes": classes_of(error)}


def _code_of(error: VolcanoError) -> str:
    if isinstance(error, TransportError):
        return "no_answer"
    if error.code is None and isinstance(error, ServerError):
        return "bad_answer"
    return str(error.code)


def _attached_to(error: BaseException) -> Answer:
    """The kind of error that is attached to the body's."""
    notes = [note.partition(":")[0] for note in getattr(error, "__notes__", [])]
    return {"attached": notes[0]} if notes else {}
