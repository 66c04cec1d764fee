"""Malformed scenario files are refused with file, line and step."""

from pathlib import Path

import pytest

from ..runner import ScenarioFailed, run
from ..targets.catalog import TARGETS
from ..targets.lock_service import LockServiceTarget
from .parser import Quota, Scenario, ScenarioSyntaxError, parse

GOOD = """
guarantee: one
scenarios:
  - title: A good one
    proves: [LEASE-4]
    targets: all
    steps:
      - acquire: {actor: ann}
        remember: first
      - advance_ms: 1_000
      - acquire: {actor: ann, token: same}
        expect: {fencing_token: {equals: first}}
"""


def one(text: str) -> Scenario:
    (scenario,) = parse(text, "file")
    return scenario


def test_a_good_file_is_read() -> None:
    scenario = one(GOOD)
    assert scenario.id == "file:a-good-one"
    assert scenario.proves == ("LEASE-4",)
    assert [step.verb for step in scenario.steps] == ["acquire", "advance_ms", "acquire"]
    assert scenario.needs == frozenset()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("guarantee: one", "guaranty: one", "file.yaml: unknown word 'guaranty'"),
        ("proves: [LEASE-4]", "proves: [lease 4]", "file.yaml:4: proves must list rule ids"),
        ("targets: all", "targets: all\n    cases: [one]", "file.yaml:4: cases must list numbers of spec/faults.md"),
        ("targets: all", "targets: some", "file.yaml:4: targets must be one of all, server, clients"),
        ("targets: all", "targets: all\n    quota: {per_minute: 3}", "file.yaml:4: quota: unknown word 'per_minute'"),
        ("actor: ann}", "actr: ann}", "file.yaml:8: step 1 (acquire): unknown word 'actr'"),
        ("acquire: {actor: ann}", "acquire: {}", "file.yaml:8: step 1 (acquire): actor is missing"),
        ("acquire: {actor: ann}", "aquire: {actor: ann}", "file.yaml:8: step 1: unknown word 'aquire'"),
        ("remember: first", "remember: First!", "file.yaml:8: step 1 (acquire): remember must be a name"),
        ("remember: first", "get: {}", "file.yaml:8: step 1: a step has exactly one verb"),
        ("advance_ms: 1_000", "advance_ms: -1", "file.yaml:10: step 2 (advance_ms): value must be a whole number"),
        ("advance_ms: 1_000", "guard: {actor: ann}", "file.yaml:4: a scenario with client verbs must say"),
        ("advance_ms: 1_000", "wait: {actor: bob}", "file.yaml:10: step 2 (wait): wait_seconds is missing"),
        (
            "acquire: {actor: ann}",
            "acquire: {actor: ann, wait_seconds: -1}",
            "wait_seconds must be seconds, at least 0",
        ),
        (
            "advance_ms: 1_000",
            "subscribe: {actor: eve, key: k, prefix: p}",
            "key and prefix exclude each other",
        ),
        (
            "advance_ms: 1_000",
            "events: {actor: eve}\n        expect: {events: [{why: free}]}",
            "step 2 (events): expect: events 1 must have event",
        ),
        (
            "advance_ms: 1_000",
            "events: {actor: eve}\n        expect: {events: [{event: lost}]}",
            "events 1: event must be one of acquired",
        ),
        (
            "advance_ms: 1_000",
            "events: {actor: eve}\n        expect: {events: [{event: renewed, fencing_token: {equals: last}}]}",
            "no earlier step remembers 'last'",
        ),
        ("acquire: {actor: ann}", "acquire: {actor: ann, hold_at_least_seconds: 5}", "unknown word 'hold_at_least"),
        ("advance_ms: 1_000", "outage: {kind: storm}", "step 2 (outage): kind must be one of"),
        (
            "advance_ms: 1_000",
            "outage: {kind: delay_after}",
            "step 2 (outage): delay_ms belongs to the kinds",
        ),
        ("advance_ms: 1_000", "outage: {kind: altered}", "step 2 (outage): answer belongs to the kind altered"),
        ("advance_ms: 1_000", "outage: {kind: altered, answer: {a: []}}", "answer must map fields of the answer"),
        ("advance_ms: 1_000", "search_store: {token: x}", "no earlier step names the token 'x'"),
        ("{equals: first}", "{equals: second}", "file.yaml:11: step 3 (acquire): no earlier step remembers 'second'"),
        ("{equals: first}", "{same_as: first}", "file.yaml:11: step 3 (acquire): expect: fencing_token must be now"),
        ("expect: {fencing_token: {equals: first}}", "expect: {held: true}", "expect: unknown word 'held'"),
        ("expect: {fencing_token: {equals: first}}", "expect: {}", "expect is empty"),
        (
            "        remember: first",
            "        remember: first\n        remember: again",
            "line 10: remember appears twice",
        ),
    ],
)
def test_an_unknown_word_is_refused_with_its_location(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioSyntaxError) as refused:
        parse(GOOD.replace(old, new, 1), "file")
    assert message in str(refused.value)


def test_a_duplicate_title_is_refused() -> None:
    again = GOOD + GOOD.partition("scenarios:\n")[2]
    with pytest.raises(ScenarioSyntaxError, match="two scenarios have the id file:a-good-one"):
        parse(again, "file")


def test_a_scenario_runs_on_the_targets_that_have_its_abilities() -> None:
    restarting = one(GOOD.replace("advance_ms: 1_000", "restart: {}"))
    names = {spec.name for spec in TARGETS if spec.supports(restarting)}
    assert "service-sqlite" in names
    assert "service-memory" not in names


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "{equals: first}",
            "{greater_than: first}",
            "11: step 3 (acquire): expected fencing_token greater_than",
        ),
        ("expect: {fencing_token: {equals: first}}", "expect: {error: lock_held}", "expected error 'lock_held'; got"),
        ("token: same", "token: other", "must succeed; got error 'lock_held'"),
        (
            "acquire: {actor: ann, token: same}\n        expect: {fencing_token: {equals: first}}",
            "wait: {actor: bob, wait_seconds: 9}\n      - waited: {actor: bob}",
            "must be complete; got pending True",
        ),
        ("fencing_token: {equals: first}", "expires_in_ms: 29_000", "expected expires_in_ms 29000; got"),
    ],
)
def test_an_unexpected_result_fails_at_its_step(old: str, new: str, message: str, tmp_path: Path) -> None:
    target = LockServiceTarget(Quota(), "memory://", tmp_path)
    run(one(GOOD), target)
    target.close()
    target = LockServiceTarget(Quota(), "memory://", tmp_path)
    with pytest.raises(ScenarioFailed) as failed:
        run(one(GOOD.replace(old, new, 1)), target)
    target.close()
    assert message in str(failed.value)
