"""Runs a scenario on one target and checks every result.

Only the runner decides the names of acquisitions, their owner tokens, the remembered results, and whether a result is
the expected one. It sends plain verbs with JSON values (see `targets.target`), so a target can be a process in another
language.

A step without `expect: {error: …}` must succeed, and a wait must be complete unless the step expects `pending`.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final
from uuid import UUID

from .scenario.parser import Scenario, Step
from .scenario.vocabulary import RELATIONS
from .targets.target import Result, Target

MISUSE: Final = ("given",)
OPTIONS: Final = ("wait_seconds", "hold_at_least_seconds", "renew_every_seconds", "throws")

LISTED: Final = ("events", "changes")
COUNTED: Final = ("starts", "ends")


class ScenarioFailed(AssertionError):  # noqa: N818 - it is a test's verdict, not an error of the runner
    """A result was not the expected one. The message names the step, the expected and the actual result."""


def run(scenario: Scenario, target: Target) -> None:
    """Run every step. Raises ScenarioFailed at the first unexpected result."""
    _Run(scenario, target).run_steps(scenario.steps)


class _Run:
    def __init__(self, scenario: Scenario, target: Target) -> None:
        self._scenario: Final = scenario
        self._target: Final = target
        self._remembered: Final[dict[str, Result]] = {}
        self._acquisitions = 0
        self._latest: Final[dict[tuple[str, str], str]] = {}
        self._ttl_seconds: Final[dict[str, int]] = {}

    def run_steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if step.verb == "repeat":
                for _ in range(int(str(step.args["times"]))):
                    self.run_steps(step.steps)
                continue
            before_ms = self._target.now_ms()
            result = self._perform(step)
            result = _with_relative_times(result, self._target.now_ms())
            self._check(step, result, before_ms)
            if step.remember is not None:
                self._remembered[step.remember] = result

    # --- performing a step ---

    def _perform(self, step: Step) -> Result:
        if step.verb == "advance_ms":
            self._target.advance(int(str(step.args["value"])))
            return {}
        request = self._arguments_for(step.verb, dict(step.args))
        return self._target.do(step.verb, request | _expected_counts(step))

    def _arguments_for(self, verb: str, args: dict[str, object]) -> dict[str, object]:
        """The verb's arguments with defaults filled in, and owner tokens in place of their names."""
        match verb:
            case "acquire" | "enter" | "wait":
                request = (
                    self._acquire_arguments(args)
                    | {word: args[word] for word in OPTIONS if word in args}
                    | self._ids(args)
                )
            case "renew" | "release":
                request = self._owner_arguments(args) | {word: args[word] for word in MISUSE if word in args}
            case (
                "get" | "guard" | "exit" | "waited" | "hang_up" | "view" | "history"
                | "watch" | "watched" | "leading" | "resign"
            ):  # fmt: skip
                request = {"actor": "observer", **args, "key": self._key(args)}
            case "force_release":
                request = {"actor": "observer", **args, "key": self._key(args), **self._forced_lease(args)}
            case "lead" | "call" | "nest":
                request = {**args, "key": self._key(args), "ttl_seconds": self._ttl(args)}
            case "subscribe":
                request = args if "prefix" in args else {**args, "key": self._key(args)}
            case "race":
                tokens = [self._token(f"racer_{self._new_number()}") for _ in range(int(str(args["actors"])))]
                request = {**args, "key": self._key(args), "ttl_seconds": self._ttl(args), "tokens": tokens}
            case "list":
                request = {"actor": "observer", "prefix": "", "state": "all", **args}
            case "search_store":
                request = {"text": self._token(str(args["token"]))}
            case _:
                request = args
        return request

    def _acquire_arguments(self, args: dict[str, object]) -> dict[str, object]:
        """An acquisition. Its name is new unless `token` names one (`same`: the actor's latest)."""
        actor, key = str(args["actor"]), self._key(args)
        named = args.get("token")
        if named == "same":
            label = self._latest[actor, key]
        else:
            label = str(named) if named else f"{actor}_{self._new_number()}"
        self._latest[actor, key] = label
        self._ttl_seconds[label] = self._ttl(args)
        token = self._token(label) if named or not self._target.makes_tokens else None
        return {"actor": actor, "key": key, "ttl_seconds": self._ttl(args), "lease": label, "token": token}

    def _owner_arguments(self, args: dict[str, object]) -> dict[str, object]:
        """A renewal or release of the actor's latest acquisition, or of the one that `token` names."""
        actor, key = str(args["actor"]), self._key(args)
        named = args.get("token")
        label = str(named) if named else self._latest.get((actor, key), f"{actor}_stranger")
        ttl_seconds = args.get("ttl_seconds", self._ttl_seconds.get(label, self._scenario.ttl_seconds))
        request = {"actor": actor, "key": key, "lease": label, "token": self._token(label)}
        return {**request, "ttl_seconds": ttl_seconds}

    def _forced_lease(self, args: Mapping[str, object]) -> dict[str, object]:
        """The fencing token of the remembered result that `lease` names."""
        if "lease" not in args:
            return {}
        return {"fencing_token": self._remembered[str(args["lease"])]["fencing_token"]}

    def _ids(self, args: Mapping[str, object]) -> dict[str, object]:
        """The ids that the caller passes explicitly, in upper case if the step has `spelling`."""
        ids = {"request_id": self._token(f"request {args['request_id']}")} if "request_id" in args else {}
        if "spelling" not in args:
            return dict(ids)
        assert "token" in args, "spelling needs a token that the caller passes"
        given = {**ids, "token": self._token(self._latest[str(args["actor"]), self._key(args)])}
        return {word: one.upper() for word, one in given.items()} | {"spelling": args["spelling"]}

    def _key(self, args: Mapping[str, object]) -> str:
        return str(args.get("key", self._scenario.key))

    def _ttl(self, args: Mapping[str, object]) -> int:
        return int(str(args.get("ttl_seconds", self._scenario.ttl_seconds)))

    def _new_number(self) -> int:
        self._acquisitions += 1
        return self._acquisitions

    def _token(self, label: str) -> str:
        """The owner token behind a name: the same on every target, different in every scenario."""
        digest = sha256(f"{self._scenario.id} {label}".encode()).digest()
        return str(UUID(bytes=digest[:16], version=4))

    # --- checking a result ---

    def _check(self, step: Step, result: Result, before_ms: int) -> None:
        expected = dict(step.expect)
        if "error" not in expected and "error" in result:
            raise ScenarioFailed(f"{step.where}: must succeed; got {_format(result)}")
        if "pending" in result and "pending" not in expected:
            raise ScenarioFailed(f"{step.where}: must be complete; got {_format(result)}")
        for word, wanted in expected.items():
            if word not in result:
                raise ScenarioFailed(f"{step.where}: expected {word} {wanted!r}; got {_format(result)}")
            if not self._matches(word, wanted, result[word], before_ms):
                raise ScenarioFailed(
                    f"{step.where}: expected {word} {self._describe(word, wanted)}; got {_format(result)}"
                )

    def _matches(self, word: str, wanted: object, got: object, before_ms: int) -> bool:
        if wanted == "now" and word == "fencing_token":
            return got == before_ms
        if isinstance(wanted, list) and wanted and isinstance(wanted[0], dict):
            return isinstance(got, list) and len(got) == len(wanted) and all(map(self._item_matches, wanted, got))
        if word == "error_classes":
            return isinstance(wanted, list) and isinstance(got, list) and set(wanted) <= set(got)
        if word == "retry_after_seconds":
            return type(got) is int and got == wanted
        if isinstance(wanted, dict) and isinstance(got, int):
            ((relation, name),) = wanted.items()
            return RELATIONS[relation](got, int(str(self._remembered[name][word])))
        return isinstance(got, bool) == isinstance(wanted, bool) and got == wanted

    def _item_matches(self, wanted: Mapping[str, object], got: Mapping[str, object]) -> bool:
        """Whether one item of a list matches in every expected field."""
        return all(word in got and self._matches(word, value, got[word], 0) for word, value in wanted.items())

    def _describe(self, word: str, wanted: object) -> str:
        if isinstance(wanted, dict) and set(wanted) <= set(RELATIONS):
            ((relation, name),) = wanted.items()
            return f"{relation} {name} ({self._remembered[name].get(word)})"
        return repr(wanted)


def _expected_counts(step: Step) -> dict[str, object]:
    """How many items a target awaits in real time before it returns: events may still be in flight."""
    awaited = {word: step.expect[word] for word in COUNTED if word in step.expect}
    for word in LISTED:
        items = step.expect.get(word)
        if isinstance(items, list):
            awaited["count"] = len(items)
    return awaited


def _with_relative_times(result: Result, now_ms: int) -> Result:
    """The result with its instants also relative to now: `expires_in_ms`, `acquired_ago_ms` and the like."""
    timed = dict(result)
    if timed.get("expires_at_ms") is not None:
        timed["expires_in_ms"] = int(str(timed["expires_at_ms"])) - now_ms
    for what in ("acquired", "renewed"):
        if timed.get(f"{what}_at_ms") is not None:
            timed[f"{what}_ago_ms"] = now_ms - int(str(timed[f"{what}_at_ms"]))
    if "at_ms" in timed:
        timed["ago_ms"] = None if timed["at_ms"] is None else now_ms - int(str(timed["at_ms"]))
    for what in LISTED:
        if what in timed:
            timed[what] = [_with_relative_times(item, now_ms) for item in timed[what]]  # type: ignore[attr-defined]
    if "quota_reset_at_seconds" in timed:
        timed["quota_reset_in_seconds"] = -(-(int(str(timed["quota_reset_at_seconds"])) * 1_000 - now_ms) // 1_000)
    return timed


def _format(result: Result) -> str:
    return ", ".join(f"{word} {value!r}" for word, value in result.items()) or "success"
