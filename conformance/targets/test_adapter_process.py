"""A misbehaving adapter fails its scenario with the adapter's name, and the next scenario gets a new process."""

import sys
from collections.abc import Iterator

import pytest

from . import adapter_process
from .adapter_process import Adapter

ECHO = """
import json, os, sys, threading
for line in sys.stdin:
    asked = json.loads(line)
    if asked["verb"] == "crash":
        print(json.dumps({"crash": "unhandled rejection"}), flush=True)
    elif asked["verb"] == "move":
        for seconds in (0.25, 0.5):
            print(json.dumps({"move_seconds": seconds}), flush=True)
            assert json.loads(sys.stdin.readline()) == {"moved": True}
        print(json.dumps({"answer": {}}), flush=True)
    elif asked["verb"] == "look":
        print(json.dumps({"look": True}), flush=True)
        print(json.dumps({"answer": json.loads(sys.stdin.readline())}), flush=True)
    elif asked["verb"] == "linger":
        threading.Thread(target=threading.Event().wait).start()
        print(json.dumps({"answer": {}}), flush=True)
    elif asked["verb"] == "die":
        sys.exit(3)
    elif asked["verb"] != "hang":
        print(json.dumps({"answer": {"pid": os.getpid()}}), flush=True)
sys.exit(4 if asked["verb"] == "fail" else 0)
"""


@pytest.fixture
def adapter() -> Iterator[Adapter]:
    made = Adapter("echo", (sys.executable, "-c", ECHO))
    yield made
    made.end()


def ask(adapter: Adapter, verb: str) -> object:
    return adapter.ask(verb, {}, lambda _seconds: None).get("pid")


def test_one_process_acts_out_many_scenarios(adapter: Adapter) -> None:
    assert ask(adapter, "open") == ask(adapter, "close") == ask(adapter, "open")


def test_the_clock_moves_before_the_result(adapter: Adapter) -> None:
    moved: list[float] = []
    assert adapter.ask("move", {}, moved.append) == {}
    assert moved == [0.25, 0.5]


def test_an_adapter_can_query_the_state_of_the_network(adapter: Adapter) -> None:
    state = adapter.ask("look", {}, look=lambda: {"at_rest": True})
    assert state == {"at_rest": True}


@pytest.mark.parametrize(
    ("verb", "message"),
    [("crash", "echo: crash: unhandled rejection"), ("die", "has ended"), ("hang", "does not respond")],
)
def test_a_crash_or_a_hang_fails_the_scenario_and_the_next_verb_starts_a_new_process(
    adapter: Adapter, verb: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ask(adapter, "open")
    with monkeypatch.context() as patch:
        if verb == "hang":
            patch.setattr(adapter_process, "RESPONSE_SECONDS_MAX", 0.5)
        with pytest.raises(AssertionError, match=message):
            ask(adapter, verb)
    assert ask(adapter, "open") != before


def test_a_process_that_does_not_exit_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Adapter("echo", (sys.executable, "-c", ECHO))
    ask(adapter, "linger")
    monkeypatch.setattr(adapter_process, "END_SECONDS_MAX", 0.5)
    with pytest.raises(AssertionError, match="echo: the process does not exit"):
        adapter.end()


def test_a_nonzero_exit_code_is_a_failure() -> None:
    adapter = Adapter("echo", (sys.executable, "-c", ECHO))
    ask(adapter, "fail")
    with pytest.raises(AssertionError, match="echo: the process exited with 4"):
        adapter.end()


def test_a_missing_executable_is_named() -> None:
    with pytest.raises(AssertionError, match="cobol: no-such-program cannot be started"):
        ask(Adapter("cobol", ("no-such-program",)), "open")
