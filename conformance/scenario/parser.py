"""Parses scenario files strictly: anything unknown is an error that names file, line and step.

Each file describes one guarantee:

    guarantee: An owner may repeat an acquire until the margin
    scenarios:
      - title: a repeat is the same lease
        proves: [LEASE-4]
        targets: all
        steps:
          - acquire: {actor: ann, ttl_seconds: 30}
            remember: first
          - advance_ms: 28_999
          - acquire: {actor: ann, token: same}
            expect: {fencing_token: {equals: first}, expires_in_ms: 30_000}

`vocabulary.VERBS` lists the words, README.md explains them. In the scenarios that `load` returns, every step is well
formed, every remembered name is defined before its use, and client verbs appear only in scenarios for clients.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from volcano_locks_server.rules.shares import Budgets

from .vocabulary import (
    NAME,
    RULE_ID,
    SCENARIO_TARGETS,
    STEPS_MAX,
    STORE_FAULT_KINDS,
    VERBS,
    Check,
    Verb,
    a_bool,
    a_number,
)

SCENARIOS: Final = Path(__file__).parents[1] / "scenarios"
FILE_WORDS: Final = frozenset({"guarantee", "scenarios"})
SCENARIO_WORDS: Final = frozenset(
    {"title", "why", "proves", "cases", "targets", "key", "ttl_seconds", "quota", "budgets", "steps"}
)
BUDGET_WORDS: Final[Mapping[str, Check]] = {one.name: a_number(1) for one in Budgets()}
QUOTA_WORDS: Final[Mapping[str, Check]] = {"requests_per_minute": a_number(1), "owner_reserve": a_bool}
STEP_WORDS: Final = frozenset({"expect", "remember", "why"})


class ScenarioSyntaxError(Exception):
    """A scenario file is malformed. The message names file, line and step."""


@dataclass(frozen=True)
class Step:
    """One step: a verb with its arguments (a bare value has the key `value`), and the expected result."""

    where: str
    verb: str
    args: Mapping[str, object]
    expect: Mapping[str, object]
    remember: str | None = None
    steps: "tuple[Step, ...]" = ()


@dataclass(frozen=True)
class Quota:
    """A project's quota; 0 requests per minute means none. `budgets` are limits of the node's budgets, by name."""

    requests_per_minute: int = 0
    owner_reserve: bool = True
    budgets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """A sequence of steps with expected results. `id` is file:title."""

    id: str
    proves: tuple[str, ...]
    cases: tuple[int, ...]
    targets: str
    key: str
    ttl_seconds: int
    quota: Quota
    steps: tuple[Step, ...]

    def every_step(self) -> Iterator[Step]:
        """All steps, including those inside `repeat`, in order."""
        return _every(self.steps)

    @property
    def needs(self) -> frozenset[str]:
        """The abilities that a target needs beyond the five basic verbs, in the words of `targets.catalog`."""
        steps = list(self.every_step())
        found = {step.verb for step in steps if step.verb in ("search_store", "restart", "purge")}
        found |= {"client" for step in steps if VERBS[step.verb].clients_only}
        found |= {"body_stops" for step in steps if "stopped" in step.expect}
        found |= {"streams" for step in steps if step.verb == "subscribe"}
        found |= {"pages" for step in steps if step.verb == "list" and "limit" in step.args}
        found |= {"quota"} if self.quota.requests_per_minute or self.quota.budgets else set()
        found |= {"network" for step in steps if step.verb in ("sent", "cut")}
        for step in steps:
            if step.verb == "outage":
                found |= {"store_faults"} if step.args["kind"] in STORE_FAULT_KINDS else {"client", "network"}
        return frozenset(found)


def load(folder: Path = SCENARIOS) -> list[Scenario]:
    """Every scenario in `folder`, ordered by file name. Raises ScenarioSyntaxError."""
    return [
        scenario
        for path in sorted(folder.rglob("*.yaml"), key=lambda path: path.name)
        for scenario in parse(path.read_text("utf-8"), path.stem)
    ]


def parse(text: str, stem: str) -> list[Scenario]:
    """The scenarios in the text of the file `stem`.yaml. Raises ScenarioSyntaxError."""
    try:
        loaded = yaml.load(text, _Loader)
    except (yaml.YAMLError, ScenarioSyntaxError) as error:
        raise ScenarioSyntaxError(f"{stem}.yaml: {error}") from error
    top = _mapping(loaded, f"{stem}.yaml", FILE_WORDS, needed=("guarantee", "scenarios"))
    _text(top["guarantee"], f"{stem}.yaml", "guarantee")
    scenarios = [_scenario(one, stem) for one in _list(top["scenarios"], f"{stem}.yaml", "scenarios")]
    ids = [scenario.id for scenario in scenarios]
    if doubles := {one for one in ids if ids.count(one) > 1}:
        raise ScenarioSyntaxError(f"{stem}.yaml: two scenarios have the id {min(doubles)}")
    return scenarios


# --- one scenario -----------------------------------------------------------------------------------------


def _scenario(given: object, stem: str) -> Scenario:
    where = f"{stem}.yaml:{getattr(given, 'line', '?')}"
    scenario = _mapping(given, where, SCENARIO_WORDS, needed=("title", "proves", "targets", "steps"))
    title = _text(scenario["title"], where, "title")
    proves = tuple(_list(scenario["proves"], where, "proves"))
    for rule in proves:
        if not isinstance(rule, str) or RULE_ID.fullmatch(rule) is None:
            raise ScenarioSyntaxError(f"{where}: proves must list rule ids such as LEASE-4; got {rule!r}")
    cases = tuple(_list(scenario["cases"], where, "cases")) if "cases" in scenario else ()
    for case in cases:
        if type(case) is not int:
            raise ScenarioSyntaxError(f"{where}: cases must list numbers of spec/faults.md; got {case!r}")
    if scenario["targets"] not in SCENARIO_TARGETS:
        raise ScenarioSyntaxError(
            f"{where}: targets must be one of {', '.join(SCENARIO_TARGETS)}; got {scenario['targets']!r}"
        )
    quota = _mapping(scenario.get("quota", {}), f"{where}: quota", frozenset(QUOTA_WORDS))
    _check(quota, QUOTA_WORDS, f"{where}: quota")
    budgets = _mapping(scenario.get("budgets", {}), f"{where}: budgets", frozenset(BUDGET_WORDS))
    _check(budgets, BUDGET_WORDS, f"{where}: budgets")
    ttl_seconds = scenario.get("ttl_seconds", 30)
    _check({"ttl_seconds": ttl_seconds}, {"ttl_seconds": a_number(1)}, where)
    built = Scenario(
        id=f"{stem}:{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}",
        proves=tuple(str(rule) for rule in proves),
        cases=tuple(int(str(case)) for case in cases),
        targets=str(scenario["targets"]),
        key=_text(scenario.get("key", "daily-rollup"), where, "key"),
        ttl_seconds=int(str(ttl_seconds)),
        quota=Quota(**quota, budgets=budgets),  # type: ignore[arg-type]
        steps=_steps(scenario["steps"], stem, "step"),
    )
    if "client" in built.needs and built.targets != "clients":
        raise ScenarioSyntaxError(f"{where}: a scenario with client verbs must say targets: clients")
    _check_memory(built)
    return built


def _steps(given: object, stem: str, label: str) -> tuple[Step, ...]:
    listed = _list(given, f"{stem}.yaml: {label}", "steps")
    if len(listed) > STEPS_MAX:
        raise ScenarioSyntaxError(f"{stem}.yaml: a scenario has at most {STEPS_MAX} steps; got {len(listed)}")
    return tuple(_step(one, stem, f"{label} {number}") for number, one in enumerate(listed, 1))


def _step(given: object, stem: str, label: str) -> Step:
    where = f"{stem}.yaml:{getattr(given, 'line', '?')}: {label}"
    step = _mapping(given, where, STEP_WORDS | frozenset(VERBS))
    verbs = [word for word in step if word in VERBS]
    if len(verbs) != 1:
        raise ScenarioSyntaxError(
            f"{where}: a step has exactly one verb of {', '.join(VERBS)}; got {verbs or list(step)}"
        )
    name = verbs[0]
    verb = VERBS[name]
    where = f"{where} ({name})"
    args = _arguments(step[name], verb, where)
    expect = _mapping(step.get("expect", {}), f"{where}: expect", frozenset(verb.answers))
    _check(expect, verb.answers, f"{where}: expect")
    if "expect" in step and not expect:
        raise ScenarioSyntaxError(f"{where}: expect is empty: remove it, success is expected by default")
    remember = step.get("remember")
    if remember is not None and (not isinstance(remember, str) or NAME.fullmatch(remember) is None):
        raise ScenarioSyntaxError(f"{where}: remember must be a name such as first; got {remember!r}")
    inner = _steps(args["steps"], stem, f"{label}.") if name == "repeat" else ()
    return Step(where, name, args, expect, remember, inner)


def _arguments(given: object, verb: Verb, where: str) -> Mapping[str, object]:
    if verb.bare is not None:
        _check({"value": given}, {"value": verb.bare}, where)
        return {"value": given}
    args = _mapping({} if given is None else given, where, frozenset(verb.args), needed=verb.needs)
    _check(args, verb.args, where)
    if str(args.get("kind", "")).startswith("delay") != ("delay_ms" in args):
        raise ScenarioSyntaxError(f"{where}: delay_ms belongs to the kinds delay_before and delay_after")
    refuses = args.get("kind") == "drop_before"
    if (refuses and ("of" in args or "count" in args)) or ("lasts_ms" in args and not refuses):
        raise ScenarioSyntaxError(f"{where}: lasts_ms belongs to the kind drop_before, `of` and `count` to the others")
    if "key" in args and "prefix" in args:
        raise ScenarioSyntaxError(f"{where}: key and prefix exclude each other")
    if (args.get("kind") == "altered") != ("answer" in args):
        raise ScenarioSyntaxError(f"{where}: answer belongs to the kind altered")
    return args


def _check_memory(scenario: Scenario) -> None:
    """A name in a comparison must be remembered by an earlier step, and a searched token used by one."""
    remembered: set[str] = set()
    tokens: set[str] = set()
    for step in scenario.every_step():
        for name in _names_in(step.expect):
            if name not in remembered:
                raise ScenarioSyntaxError(f"{step.where}: no earlier step remembers {name!r}")
        if step.verb == "search_store" and step.args["token"] not in tokens:
            raise ScenarioSyntaxError(f"{step.where}: no earlier step names the token {step.args['token']!r}")
        tokens.add(str(step.args.get("token")))
        if step.remember is not None:
            remembered.add(step.remember)


def _names_in(expect: Mapping[str, object]) -> Iterator[str]:
    """The names in relations, including those inside list items."""
    for asked in expect.values():
        if isinstance(asked, list):
            for item in asked:
                yield from _names_in(item) if isinstance(item, dict) else ()
        elif isinstance(asked, dict):
            yield from (name for name in asked.values() if isinstance(name, str))


# --- values of one kind -----------------------------------------------------------------------------------


def _mapping(given: object, where: str, words: frozenset[str], *, needed: tuple[str, ...] = ()) -> Mapping[str, object]:
    if not isinstance(given, dict):
        raise ScenarioSyntaxError(f"{where}: must be a mapping with {', '.join(sorted(words)) or 'no words'}")
    for word in given:
        if word not in words:
            raise ScenarioSyntaxError(
                f"{where}: unknown word {word!r}; known here: {', '.join(sorted(words)) or 'none'}"
            )
    for word in needed:
        if word not in given:
            raise ScenarioSyntaxError(f"{where}: {word} is missing")
    return given


def _check(given: Mapping[str, object], checks: Mapping[str, Check], where: str) -> None:
    for word, value in given.items():
        if wrong := checks[word](value):
            raise ScenarioSyntaxError(f"{where}: {word} {wrong}; got {value!r}")


def _list(given: object, where: str, word: str) -> list[object]:
    if not isinstance(given, list) or not given:
        raise ScenarioSyntaxError(f"{where}: {word} must be a non-empty list")
    return given


def _text(given: object, where: str, word: str) -> str:
    if not isinstance(given, str) or not given:
        raise ScenarioSyntaxError(f"{where}: {word} must be a text; got {given!r}")
    return given


def _every(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from _every(step.steps)


class _LocatedMapping(dict[str, object]):
    """A mapping with its line in the file."""

    line: int = 0


class _Loader(yaml.SafeLoader):
    """A safe loader whose mappings have a line number and no duplicate keys."""


def _mapping_with_line(loader: _Loader, node: yaml.MappingNode) -> _LocatedMapping:
    mapping = _LocatedMapping()
    mapping.line = node.start_mark.line + 1
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise ScenarioSyntaxError(f"line {key_node.start_mark.line + 1}: {key!r} is not a word")
        if key in mapping:
            raise ScenarioSyntaxError(f"line {key_node.start_mark.line + 1}: {key} appears twice")
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_with_line)
