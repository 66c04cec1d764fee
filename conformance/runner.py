"""Acting out a scenario on one face.

The runner owns what a face must not decide: the names of acquisitions, the owner tokens behind them, what was
remembered, and whether an answer is the one expected. It speaks to the face in plain verbs with JSON values (see
`faces.face`), so that a face may as well be a process in another language.

A step without `expect: {error: …}` must succeed: an error nobody asked for fails the scenario at that step. So does a
wait that is not over where nobody said that it is `pending`.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final
from uuid import UUID

from .scenario.parser import Scenario, Step
from .scenario.vocabulary import RELATIONS
from .targets.target import Answer, Face

MISUSE: Final = ("given",)
WAITING: Final = ("wait_seconds", "hold_at_least_seconds")

LISTED: Final = ("events", "changes")
COUNTED: Final = ("starts", "ends")


class ScenarioFailed(AssertionError):  # noqa: N818 - it is a test's verdict, not an error of the runner
    """An answer was not the expected one; the message says the step, what was expected and what came."""


def run(scenario: Scenario, face: Face) -> None:
    """Act out every step. Raises ScenarioFailed at the first that turns out otherwise."""
    _Play(scenario, face).act(scenario.steps)


class _Play:
    def __init__(self, scenario: Scenario, face: Face) -> None:
        self._scenario: Final = scenario
        self._face: Final = face
        self._remembered: Final[dict[str, Answer]] = {}
        self._acquisitions = 0
        self._latest: Final[dict[tuple[str, str], str]] = {}
        self._ttl_seconds: Final[dict[str, int]] = {}

    def act(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if step.verb == "repeat":
                for _ in range(int(str(step.args["times"]))):
                    self.act(step.steps)
                continue
            before_ms = self._face.now_ms()
            answer = self._perform(step)
            answer = _seen_from(answer, self._face.now_ms())
            self._judge(step, answer, before_ms)
            if step.remember is not None:
                self._remembered[step.remember] = answer

    # --- doing ---

    def _perform(self, step: Step) -> Answer:
        if step.verb == "advance_ms":
            self._face.advance(int(str(step.args["value"])))
            return {}
        asked = self._asked(step.verb, dict(step.args))
        return self._face.do(step.verb, asked | _awaited(step))

    def _asked(self, verb: str, args: dict[str, object]) -> dict[str, object]:
        """What the face is asked: names filled in, owner tokens in place of their names."""
        match verb:
            case "acquire" | "enter" | "wait":
                asked = self._taking(args) | {word: args[word] for word in WAITING if word in args} | self._ids(args)
            case "renew" | "release":
                asked = self._owning(args) | {word: args[word] for word in MISUSE if word in args}
            case (
                "get" | "force_release" | "guard" | "exit" | "waited" | "hang_up" | "view"
                | "watch" | "watched" | "leading" | "resign"
            ):  # fmt: skip
                asked = {"actor": "someone", **args, "key": self._key(args)}
            case "lead" | "call":
                asked = {**args, "key": self._key(args), "ttl_seconds": self._ttl(args)}
            case "hear":
                asked = args if "prefix" in args else {**args, "key": self._key(args)}
            case "race":
                tokens = [self._token(f"racer_{self._new_number()}") for _ in range(int(str(args["actors"])))]
                asked = {**args, "key": self._key(args), "ttl_seconds": self._ttl(args), "tokens": tokens}
            case "list":
                asked = {"actor": "someone", "prefix": "", "state": "all", **args}
            case "search_store":
                asked = {"text": self._token(str(args["token"]))}
            case _:
                asked = args
        return asked

    def _taking(self, args: dict[str, object]) -> dict[str, object]:
        """An acquisition: under a name of its own, unless `token` names one (`same`: the actor's latest)."""
        actor, key = str(args["actor"]), self._key(args)
        named = args.get("token")
        if named == "same":
            label = self._latest[actor, key]
        else:
            label = str(named) if named else f"{actor}_{self._new_number()}"
        self._latest[actor, key] = label
        self._ttl_seconds[label] = self._ttl(args)
        token = self._token(label) if named or not self._face.makes_tokens else None
        return {"actor": actor, "key": key, "ttl_seconds": self._ttl(args), "lease": label, "token": token}

    def _owning(self, args: dict[str, object]) -> dict[str, object]:
        """A renewal or release: of the actor's latest acquisition, or of the one that `token` names."""
        actor, key = str(args["actor"]), self._key(args)
        named = args.get("token")
        label = str(named) if named else self._latest.get((actor, key), f"{actor}_stranger")
        ttl_seconds = args.get("ttl_seconds", self._ttl_seconds.get(label, self._scenario.ttl_seconds))
        asked = {"actor": actor, "key": key, "lease": label, "token": self._token(label)}
        return {**asked, "ttl_seconds": ttl_seconds}

    def _ids(self, args: Mapping[str, object]) -> dict[str, object]:
        """The ids that the caller gives by itself: of the request, and both in upper case if the step says so."""
        ids = {"request_id": self._token(f"request {args['request_id']}")} if "request_id" in args else {}
        if "spelling" not in args:
            return dict(ids)
        assert "token" in args, "spelling is about a token that the caller gives"
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
        """The owner token behind a name: the same on every face, another in every scenario."""
        digest = sha256(f"{self._scenario.id} {label}".encode()).digest()
        return str(UUID(bytes=digest[:16], version=4))

    # --- judging ---

    def _judge(self, step: Step, answer: Answer, before_ms: int) -> None:
        expected = dict(step.expect)
        if "error" not in expected and "error" in answer:
            raise ScenarioFailed(f"{step.where}: must succeed; got {_shown(answer)}")
        if "pending" in answer and "pending" not in expected:
            raise ScenarioFailed(f"{step.where}: must be over; got {_shown(answer)}")
        for word, wanted in expected.items():
            if word not in answer:
                raise ScenarioFailed(f"{step.where}: expected {word} {wanted!r}; got {_shown(answer)}")
            if not self._fits(word, wanted, answer[word], before_ms):
                raise ScenarioFailed(
                    f"{step.where}: expected {word} {self._explained(word, wanted)}; got {_shown(answer)}"
                )

    def _fits(self, word: str, wanted: object, got: object, before_ms: int) -> bool:
        if wanted == "now" and word == "fencing_token":
            return got == before_ms
        if isinstance(wanted, list) and wanted and isinstance(wanted[0], dict):
            return isinstance(got, list) and len(got) == len(wanted) and all(map(self._is_such, wanted, got))
        if word == "error_classes":
            return isinstance(wanted, list) and isinstance(got, list) and set(wanted) <= set(got)
        if word == "retry_after_seconds":
            return type(got) is int and got == wanted
        if isinstance(wanted, dict) and isinstance(got, int):
            ((relation, name),) = wanted.items()
            return RELATIONS[relation](got, int(str(self._remembered[name][word])))
        return isinstance(got, bool) == isinstance(wanted, bool) and got == wanted

    def _is_such(self, wanted: Mapping[str, object], got: Mapping[str, object]) -> bool:
        """Whether one item of a list is as it should be, by each word that is asked about."""
        return all(word in got and self._fits(word, value, got[word], 0) for word, value in wanted.items())

    def _explained(self, word: str, wanted: object) -> str:
        if isinstance(wanted, dict) and set(wanted) <= set(RELATIONS):
            ((relation, name),) = wanted.items()
            return f"{relation} {name} ({self._remembered[name].get(word)})"
        return repr(wanted)


def _awaited(step: Step) -> dict[str, object]:
    """What a face may wait for, in real time, before it answers: what was sent may be on its way yet."""
    awaited = {word: step.expect[word] for word in COUNTED if word in step.expect}
    for word in LISTED:
        items = step.expect.get(word)
        if isinstance(items, list):
            awaited["count"] = len(items)
    return awaited


def _seen_from(answer: Answer, now_ms: int) -> Answer:
    """The answer with its instants also told from now: `expires_in_ms`, `acquired_ago_ms` and the like."""
    seen = dict(answer)
    if seen.get("expires_at_ms") is not None:
        seen["expires_in_ms"] = int(str(seen["expires_at_ms"])) - now_ms
    for what in ("acquired", "renewed"):
        if seen.get(f"{what}_at_ms") is not None:
            seen[f"{what}_ago_ms"] = now_ms - int(str(seen[f"{what}_at_ms"]))
    if "at_ms" in seen:
        seen["ago_ms"] = None if seen["at_ms"] is None else now_ms - int(str(seen["at_ms"]))
    for what in LISTED:
        if what in seen:
            seen[what] = [_seen_from(item, now_ms) for item in seen[what]]  # type: ignore[attr-defined]
    if "quota_reset_at_seconds" in seen:
        seen["quota_reset_in_seconds"] = -(-(int(str(seen["quota_reset_at_seconds"])) * 1_000 - now_ms) // 1_000)
    return seen


def _shown(answer: Answer) -> str:
    return ", ".join(f"{word} {value!r}" for word, value in answer.items()) or "success"
