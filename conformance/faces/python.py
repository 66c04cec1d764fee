"""What the faces of the Python client share: one client per actor, all under one clock that moves the server's.

A failure is told by its code; `no_answer` where no answer came, `bad_answer` where it was none of a lock service,
`body` and `cancelled` where a block ended with the body's own error.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, Protocol
from uuid import UUID

import httpx2

from volcano_locks import Lease, LockState, VolcanoError
from volcano_locks.errors import ServerError, TransportError
from volcano_locks.guard import AsyncLockGuard, LockGuard
from volcano_locks.testing import FakeLocks, ManualClock

from .face import Answer
from .failures import failure
from .house import House
from .http import ms_of
from .outages import Outage, OutageTransport


class BodyError(Exception):
    """What the body of a block raises where a scenario says so."""


class BodyCancelled(KeyboardInterrupt):
    """The interrupt that ends the body of a block where a scenario says so."""


class Backend(Protocol):
    """The server behind the clients."""

    url: str
    service_key: str
    clock: ManualClock

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
        self.clock = ManualClock(on_move=house.follow)

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
        self.clock = ManualClock()
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

    # --- each client's own ---

    @abstractmethod
    def _call(self, actor: str, name: str, *args: object, **options: object) -> object:
        """`client.locks.name(…)` of the actor's client."""

    @abstractmethod
    def _race(self, args: Mapping[str, object]) -> Answer: ...

    @abstractmethod
    def _enter(self, args: Mapping[str, object]) -> LockGuard | AsyncLockGuard: ...

    @abstractmethod
    def _guard(self, args: Mapping[str, object]) -> Answer: ...

    @abstractmethod
    def _exit(self, args: Mapping[str, object]) -> None: ...

    # --- the face ---

    def do(self, verb: str, args: Mapping[str, object]) -> Answer:
        match verb:
            case "outage":
                self._outages.append(Outage.told(args))
            case "outage_ends":
                self._outages.clear()
            case "restart":
                return self._backend.restart()
            case "purge":
                return self._backend.purge()
            case "sent":
                return self._sent(str(args["actor"]))
            case "race":
                return self._race(args)
            case "pause_ms":
                self._clock.jump(int(str(args["value"])) / 1_000)
                self._clock.settle()
            case _:
                return self._blocking(verb, args)
        return {}

    def advance(self, ms: int) -> None:
        target_ms = self._backend.now_ms() + ms
        self._clock.advance(ms / 1_000)
        assert self._backend.now_ms() == target_ms

    def now_ms(self) -> int:
        return self._backend.now_ms()

    def _blocking(self, verb: str, args: Mapping[str, object]) -> Answer:
        """A verb that the actor waits for."""
        transport = self._transport(str(args["actor"]))
        transport.blocking = True
        try:
            return self._perform(verb, args)
        except VolcanoError as error:
            return failure(_code_of(error), error.retry_after)
        except BodyError as error:
            return {"error": "body", **_attached_to(error)}
        except BodyCancelled as error:
            return {"error": "cancelled", **_attached_to(error)}
        finally:
            transport.blocking = False
            self._clock.settle()

    def _perform(self, verb: str, args: Mapping[str, object]) -> Answer:
        actor, key = str(args["actor"]), args["key"]
        match verb:
            case "acquire":
                known = self._leases.get(str(args["lease"]))
                token = args["token"] if known is None else known.token
                lease = self._call(actor, "acquire", key, ttl=args["ttl_seconds"], token=token)
                return self._keep(args, lease)
            case "renew":
                lease = self._call(actor, "renew", self._lease(args), ttl=args["ttl_seconds"])
                return self._keep(args, lease)
            case "release":
                self._call(actor, "release", self._lease(args))
            case "get":
                return _state_told(self._call(actor, "get", key))
            case "force_release":
                self._call(actor, "force_release", key)
            case "enter":
                return guard_told(self._enter(args))
            case "guard":
                return self._guard(args)
            case "exit":
                self._exit(args)
            case _:
                raise NotImplementedError(f"this face does not know the verb {verb}")
        return {}

    def _transport(self, actor: str) -> OutageTransport:
        if actor not in self._transports:
            inner = self._backend.transport()
            self._transports[actor] = OutageTransport(actor, inner, self._clock, self._outages)
        return self._transports[actor]

    def _sent(self, actor: str) -> Answer:
        """What the actor's client sent since this was last asked."""
        sent = self._transport(actor).sent
        told: dict[str, object] = {"acquire": 0, "renew": 0, "release": 0, "get": 0, "force_release": 0}
        told |= {one: sum(other.operation == one for other in sent) for one in told}
        tokens = {one.token for one in sent if one.token is not None}
        assert all(str(UUID(token)) == token for token in tokens)
        told |= {"tokens": len(tokens), "request_ids": len({one.request_id for one in sent})}
        sent.clear()
        return told

    def _keep(self, args: Mapping[str, object], lease: object) -> Answer:
        assert isinstance(lease, Lease)
        self._leases[str(args["lease"])] = lease
        return lease_told(lease)

    def _lease(self, args: Mapping[str, object]) -> Lease:
        return self._leases[str(args["lease"])]


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
