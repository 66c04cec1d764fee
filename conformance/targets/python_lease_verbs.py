"""The verbs of leases and waits, which both targets of the Python client share.

The calls run in the background while the clock advances to their end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from math import inf
from typing import Any, Final

from volcano_locks import Lease, VolcanoError

from ..scenario.vocabulary import FOREVER
from .arguments import actor_and_key, racer_tokens
from .python_backends import Backend
from .python_bodies import BodyCancelled, BodyError
from .python_results import attached_error, failure_result, lease_result, state_result, view_result
from .results import class_names, failure, race_result
from .target import Result

RACERS: Final = "racers"
REAL_SECONDS_MAX: Final = 60.0


class PythonLeaseVerbs(ABC):
    """Each subclass runs the calls of its own client in the background."""

    def __init__(self, backend: Backend) -> None:
        self._backend: Final = backend
        self._clock: Final = backend.clock
        self._leases: Final[dict[str, Lease]] = {}
        self._waits: Final[dict[tuple[str, str], tuple[Future[Any], str]]] = {}

    @abstractmethod
    def _start(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` in the background. The clock waits until it waits on the clock or its request is at rest."""

    @abstractmethod
    def _locks(self, actor: str) -> Any:
        """`client.locks` of this actor."""

    @abstractmethod
    def _cancel(self, actor: str, over: Future[Any]) -> None:
        """Cancel what the actor started, as far as the language can. Returns when it has ended."""

    # --- running calls ---

    def _start_call(self, actor: str, name: str, *args: object, **options: object) -> Future[Any]:
        """Start `client.locks.name(…)`."""
        locks = self._locks(actor)  # here, because racers share one client
        return self._start(lambda: getattr(locks, name)(*args, **options))

    def _call(self, actor: str, name: str, *args: object, **options: object) -> object:
        """`client.locks.name(…)`, while the clock advances."""
        return self._end(self._start_call(actor, name, *args, **options))

    def _end(self, over: Future[Any]) -> Any:
        """The result of what runs in the background, while the clock advances."""
        self._clock.advance_until(over)
        return over.result()

    def _result_of(self, perform: Callable[[], Result]) -> Result:
        """The result of `perform`, or of the failure that it raises."""
        try:
            return perform()
        except VolcanoError as error:
            return failure_result(error)
        except BodyError as error:
            return {"error": "body", **attached_error(error)}
        except BodyCancelled as error:
            return {"error": "cancelled", **attached_error(error)}

    # --- leases ---

    def _acquire(self, args: Mapping[str, object]) -> Result:
        if "spelling" in args:
            return self._acquire_with_spelling(args)
        actor, key = str(args["actor"]), args["key"]
        return self._keep_lease(args, self._call(actor, "acquire", key, **self._acquire_arguments(args)))

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
        return state_result(self._call(str(args["actor"]), "get", args["key"]))

    def _force_release(self, args: Mapping[str, object]) -> Result:
        options = {word: args[word] for word in ("fencing_token", "reason") if word in args}
        self._call(str(args["actor"]), "force_release", args["key"], **options)
        return {}

    def _view(self, args: Mapping[str, object]) -> Result:
        return view_result(self._call(str(args["actor"]), "view", args["key"]))

    def _race(self, args: Mapping[str, object]) -> Result:
        options = {"ttl": args["ttl_seconds"], "wait": seconds_of(args.get("wait_seconds"))}
        racers = [
            self._start_call(RACERS, "acquire", args["key"], token=token, **options) for token in racer_tokens(args)
        ]
        return race_result([self._result_of(lambda over=over: lease_result(self._end(over))) for over in racers])  # type: ignore[misc]

    # --- waits ---

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

    def _acquire_arguments(self, args: Mapping[str, object]) -> dict[str, Any]:
        """The options of an acquire. A known lease's token is used again, in the spelling passed if any."""
        known, token = self._leases.get(str(args["lease"])), args["token"]
        if known is not None and str(token).lower() != known.token.lower():
            token = known.token
        options = {"ttl": args["ttl_seconds"], "token": token, "wait": seconds_of(args.get("wait_seconds"))}
        return options | ({"request_id": args["request_id"]} if "request_id" in args else {})

    def _keep_lease(self, args: Mapping[str, object], lease: object) -> Result:
        assert isinstance(lease, Lease)
        self._leases[str(args["lease"])] = lease
        return lease_result(lease)

    def _lease(self, args: Mapping[str, object]) -> Lease:
        return self._leases[str(args["lease"])]


def seconds_of(value: object) -> float | None:
    """Seconds as the client takes them; infinite for `forever`."""
    return None if value is None else inf if value == FOREVER else float(str(value))
