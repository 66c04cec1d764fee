"""Ctrl-C comes between two instructions, where Python looks for it: as a function begins. Here it comes at each.

Not promised, and passed over here: the very first instruction of leaving a block, which the language gives nobody a
chance to guard. The lease is renewed no more then and expires.
"""

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from volcano_locks import Client
from volcano_locks.sync.block import LockBlock

from .test_over_sockets import GRANTED, Line, header, listening
from .test_verbs_in_the_calling_thread import FREED

pytestmark = pytest.mark.real_time

PATIENCE_SECONDS = 5
UNGUARDED = LockBlock.__exit__.__code__

Verb = Callable[[Client], Any]


class Granting:
    """A server that grants whatever it is asked for, and which tokens it granted and did not get back.

    A token that was given back first stays so (LEASE-11): the two may come over different connections.
    """

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.retired: set[str] = set()

    def __call__(self, line: Line, number: int) -> None:
        while head := line.request():
            token = header(head, "X-Volcano-Lock-Token")
            if head.startswith("POST"):
                self.held |= {token} - self.retired
                line.answer(GRANTED)
            else:
                self.retired.add(token)
                self.held.discard(token)
                line.answer(FREED)


@pytest.fixture
def server() -> Granting:
    return Granting()


@pytest.fixture
def granted(server: Granting) -> Iterator[Client]:
    with listening(server) as url, Client(url, "sk-x") as client:
        yield client


def acquires(client: Client) -> None:
    client.locks.acquire("k", ttl=30)


def acquires_with_its_own_token(client: Client) -> None:
    client.locks.acquire("k", ttl=30, token=str(uuid.uuid4()))


def waits(client: Client) -> None:
    client.locks.acquire("k", ttl=30, wait=60)


def holds(client: Client) -> None:
    with client.locks.with_lock("k", ttl=30, wait=60):
        pass


def leads(client: Client) -> None:
    client.locks.lead("k", lambda guard: None, ttl=30)


def runs_exclusively(client: Client) -> None:
    client.locks.exclusive("k", ttl=30, on_held="wait")(lambda: None)()


@pytest.mark.parametrize("verb", [acquires, acquires_with_its_own_token, waits, holds, leads, runs_exclusively])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one may hit a finalizer
def test_an_interrupt_leaves_nothing_held(verb: Verb, granted: Client, server: Granting) -> None:
    """SDK-2, SDK-5, SDK-11, SDK-18: case 16, case 17, wherever it comes; and it is not held up."""
    verb(granted)
    server.held.clear()
    for number in range(1, 1_000):
        began = time.monotonic()
        if not interrupted_at(number, verb, granted):
            break
        assert server.held == set(), f"at call {number}"
        assert time.monotonic() - began < PATIENCE_SECONDS, f"at call {number}"
    assert number > 50


def interrupted_at(number: int, verb: Verb, client: Client) -> bool:
    """Whether `verb` came to a function call of that number, and was interrupted there."""
    calls = 0

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "call" and frame.f_code is not UNGUARDED and frame.f_globals.get("__name__") != __name__:
            calls += 1
            if calls == number:
                sys.setprofile(None)
                raise KeyboardInterrupt

    try:
        sys.setprofile(interrupt)
        verb(client)
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return calls >= number
