"""The target of a Python client: one client per actor, all under one clock that moves the server's."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from volcano_locks import AsyncLockGuard, LockGuard
from volcano_locks.features.watch import Leadership

from .arguments import actor_and_key
from .proxied_server import ProxiedServer
from .python_backends import Backend
from .python_bodies import RESULT, Body, BodyError, Campaign
from .python_lease_verbs import REAL_SECONDS_MAX, PythonLeaseVerbs, seconds_of
from .python_results import change_result, guard_result
from .target import Result

ARRIVAL_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.002

VERBS: Final = frozenset(
    {
        *("acquire", "renew", "release", "get", "force_release", "race", "wait", "hang_up", "waited", "view", "list"),
        "history",
        *("enter", "guard", "exit", "nest", "watch", "watched", "lead", "leading", "resign", "call", "pause_ms"),
    }
)
NAMES: Final = {"call": "exclusive_call"}


class PythonClientTarget(PythonLeaseVerbs):
    """The verbs of blocks, lists, watching, leading and exclusive functions, in addition to those of leases."""

    makes_tokens = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._blocks: Final[dict[tuple[str, str], Body]] = {}
        self._watches: Final[dict[tuple[str, str], tuple[Future[Any], list[Leadership]]]] = {}
        self._campaigns: Final[dict[tuple[str, str], Campaign]] = {}

    # --- what each client does in its own way ---

    @abstractmethod
    def _keys(self, actor: str, prefix: str, state: str) -> Future[Any]:
        """Start to list keys."""

    @abstractmethod
    def _holds(self, actor: str, key: str) -> Future[Any]:
        """Start to read the history of a lock, as texts."""

    @abstractmethod
    def _start_block(self, args: Mapping[str, object]) -> Body:
        """Start to enter a block."""

    @abstractmethod
    def _start_watch(self, actor: str, key: str, seen: list[Leadership]) -> Future[Any]:
        """Start a `watch` that appends to `seen`."""

    @abstractmethod
    def _start_campaign(self, actor: str, key: str, ttl_seconds: int, campaign: Campaign) -> Future[Any]:
        """Start `lead`. Its function runs until the campaign wakes it."""

    @abstractmethod
    def _stop(self, campaign: Campaign) -> None:
        """End the campaign from outside, as the language allows."""

    @abstractmethod
    def _start_exclusive_call(
        self, actor: str, key: str, run: Callable[[LockGuard | AsyncLockGuard], None], options: dict[str, Any]
    ) -> Future[Any]:
        """Start to call a function made by `exclusive`."""

    @abstractmethod
    def _start_nested_blocks(self, args: Mapping[str, object]) -> Future[Any]:
        """Enter a block and, in its body, another one on the same key. The result is that of the inner block."""

    # --- the target ---

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        if verb in ProxiedServer.VERBS:
            result = self._backend.do(verb, args)
        else:
            assert verb in VERBS, f"this target does not know the verb {verb}"
            result = self._result_of(lambda: getattr(self, f"_{NAMES.get(verb, verb)}")(args))
        self._clock.settle()
        return result

    def advance(self, ms: int) -> None:
        target_ms = self._backend.now_ms() + ms
        self._clock.advance(ms / 1_000)
        assert self._backend.now_ms() == target_ms

    def now_ms(self) -> int:
        return self._backend.now_ms()

    def _pause_ms(self, args: Mapping[str, object]) -> Result:
        self._clock.jump(int(str(args["value"])) / 1_000)
        return {}

    # --- blocks ---

    def _enter(self, args: Mapping[str, object]) -> Result:
        block = self._start_block(args)
        guard = self._end(block.entered)
        self._blocks[actor_and_key(args)] = block
        return guard_result(guard)

    def _guard(self, args: Mapping[str, object]) -> Result:
        block = self._blocks[actor_and_key(args)]
        return {**guard_result(block.entered.result()), "stopped": block.stopped}

    def _exit(self, args: Mapping[str, object]) -> Result:
        block = self._blocks[actor_and_key(args)]
        block.finish(str(args.get("body", "returns")))
        self._end(block.over)
        return {}

    def _nest(self, args: Mapping[str, object]) -> Result:
        return self._end(self._start_nested_blocks(args))  # type: ignore[no-any-return]

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
        self._end(calling)
        return result

    # --- watching and leading ---

    def _list(self, args: Mapping[str, object]) -> Result:
        return {"keys": self._end(self._keys(str(args["actor"]), str(args["prefix"]), str(args["state"])))}

    def _history(self, args: Mapping[str, object]) -> Result:
        return {"holds": self._end(self._holds(str(args["actor"]), str(args["key"])))}

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
        return {"changes": [change_result(one) for one in taken]}

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
            campaign.over.exception(REAL_SECONDS_MAX)
        else:
            campaign.finish(how)
        result = self._end(campaign.over)
        assert result == (RESULT if how == "returns" else None), f"lead returned {result!r}"
        return {} if how == "returns" else {"error": "cancelled"}

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, or after ARRIVAL_SECONDS_MAX of real time."""
        deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def block_options(args: Mapping[str, object]) -> dict[str, Any]:
    """The options of a block."""
    options = {
        "ttl": args["ttl_seconds"],
        "token": args.get("token"),
        "wait": seconds_of(args.get("wait_seconds")),
        "hold_at_least": seconds_of(args.get("hold_at_least_seconds")),
    }
    return options | ({"renew_every": args["renew_every_seconds"]} if "renew_every_seconds" in args else {})
