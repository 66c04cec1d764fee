"""Ctrl-C at every function call of a call. Python checks for signals there.

Not promised, and not tested: the very first instruction of leaving a block, which Python does not allow to guard. The
lease then expires.
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

from ..socket_server import FREED, GRANTED, ServerConnection, header, socket_server

pytestmark = pytest.mark.real_time

INTERRUPT_SECONDS_MAX = 5
UNGUARDED = LockBlock.__exit__.__code__

Call = Callable[[Client], Any]


class GrantingServer:
    """A server that grants every acquire and records the tokens that were not released.

    A token that was released first stays so (LEASE-11), because the two requests may use different connections.
    """

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.retired: set[str] = set()

    def __call__(self, connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            token = header(head, "X-Volcano-Lock-Token")
            if head.startswith("POST"):
                self.held |= {token} - self.retired
                connection.respond(GRANTED)
            else:
                self.retired.add(token)
                self.held.discard(token)
                connection.respond(FREED)


@pytest.fixture
def server() -> GrantingServer:
    return GrantingServer()


@pytest.fixture
def granted(server: GrantingServer) -> Iterator[Client]:
    with socket_server(server) as url, Client(url, "sk-x") as client:
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


@pytest.mark.parametrize("call", [acquires, acquires_with_its_own_token, waits, holds, leads, runs_exclusively])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt may hit a finalizer
def test_an_interrupt_leaves_nothing_held(call: Call, granted: Client, server: GrantingServer) -> None:
    """SDK-2, SDK-5, SDK-11, SDK-18: case 16, case 17, at any call, and without delay."""
    call(granted)
    server.held.clear()
    for number in range(1, 1_000):
        began = time.monotonic()
        if not interrupted_at(number, call, granted):
            break
        assert server.held == set(), f"at call {number}"
        assert time.monotonic() - began < INTERRUPT_SECONDS_MAX, f"at call {number}"
    assert number > 50


def interrupted_at(number: int, call: Call, client: Client) -> bool:
    """Whether `call` reached its `number`-th function call and was interrupted there."""
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
        call(client)
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return calls >= number
