"""An adapter that misbehaves fails the scenario by name, and the next scenario gets a fresh process."""

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
        print(json.dumps({"under_way": 2}), flush=True)
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


def test_one_process_acts_many_scenarios(adapter: Adapter) -> None:
    assert ask(adapter, "open") == ask(adapter, "close") == ask(adapter, "open")


def test_the_clock_is_moved_before_the_answer(adapter: Adapter) -> None:
    moved: list[float] = []
    assert adapter.ask("move", {}, moved.append) == {}
    assert moved == [0.25, 0.5]


def test_the_client_is_told_how_the_server_stands(adapter: Adapter) -> None:
    told = adapter.ask("look", {}, lambda _seconds: None, lambda under_way: {"at_rest": under_way == 2})
    assert told == {"at_rest": True}


@pytest.mark.parametrize(
    ("verb", "said"), [("crash", "echo: crash: unhandled rejection"), ("die", "has ended"), ("hang", "does not answer")]
)
def test_what_a_caller_must_not_see_fails_and_the_process_is_started_anew(
    adapter: Adapter, verb: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ask(adapter, "open")
    with monkeypatch.context() as patch:
        if verb == "hang":
            patch.setattr(adapter_process, "ANSWER_SECONDS_MAX", 0.5)
        with pytest.raises(AssertionError, match=said):
            ask(adapter, verb)
    assert ask(adapter, "open") != before


def test_a_process_that_something_keeps_alive_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Adapter("echo", (sys.executable, "-c", ECHO))
    ask(adapter, "linger")
    monkeypatch.setattr(adapter_process, "END_SECONDS_MAX", 0.5)
    with pytest.raises(AssertionError, match="echo: something keeps the process alive"):
        adapter.end()


def test_a_process_that_ends_with_a_failure_is_one() -> None:
    adapter = Adapter("echo", (sys.executable, "-c", ECHO))
    ask(adapter, "fail")
    with pytest.raises(AssertionError, match="echo: the process ended with 4"):
        adapter.end()


def test_a_language_that_is_not_there_is_named() -> None:
    with pytest.raises(AssertionError, match="cobol: no-such-program cannot be started"):
        ask(Adapter("cobol", ("no-such-program",)), "open")
