"""The fault proxy over real sockets: each fault as a plain HTTP client sees it, and when everything is at rest."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from ..scenario.parser import Quota
from ..targets.server_harness import ServerHarness
from . import FaultProxy

KEY = "daily-rollup"
REAL_SECONDS_MAX = 10.0


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ServerHarness]:
    made = ServerHarness(Quota(), "memory://", tmp_path)
    yield made
    made.close()


@pytest.fixture
def proxy(harness: ServerHarness) -> Iterator[FaultProxy]:
    made = FaultProxy(harness)
    yield made
    made.close()


class Actor:
    """A client with one connection, which it reopens when needed."""

    def __init__(self, proxy: FaultProxy, harness: ServerHarness, name: str = "ann") -> None:
        self.connection = http.client.HTTPConnection(urlsplit(proxy.url(name)).netloc, timeout=REAL_SECONDS_MAX)
        self.headers = {
            "Authorization": f"Bearer {harness.service_key}",
            "X-Volcano-Request-Id": str(uuid4()),
            "X-Volcano-Lock-Token": str(uuid4()),
            "Content-Type": "application/json",
        }

    def send(self, method: str = "POST", body: str | None = '{"ttl_seconds": 30}') -> None:
        self.connection.request(method, f"/locks/{KEY}/lease", body, self.headers)

    def acquire(self) -> int:
        """The status of an acquire whose response is complete."""
        self.send()
        response = self.connection.getresponse()
        response.read()
        return response.status

    def is_held(self) -> bool:
        self.connection.request("GET", f"/locks/{KEY}", headers=self.headers)
        return b'"held":true' in self.connection.getresponse().read().replace(b" ", b"")


@pytest.fixture
def ann(proxy: FaultProxy, harness: ServerHarness) -> Iterator[Actor]:
    made = Actor(proxy, harness)
    yield made
    made.connection.close()


@pytest.fixture
def bob(proxy: FaultProxy, harness: ServerHarness) -> Iterator[Actor]:
    made = Actor(proxy, harness, "bob")
    yield made
    made.connection.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + REAL_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def at_rest_with(proxy: FaultProxy, open_requests: int) -> Callable[[], bool]:
    def check() -> bool:
        state = proxy.state()
        return state.at_rest and state.open_requests == open_requests

    return check


def test_what_was_sent_is_counted_by_actor_and_once(proxy: FaultProxy, ann: Actor, bob: Actor) -> None:
    assert (ann.acquire(), ann.acquire(), bob.acquire()) == (201, 201, 409)
    sent = proxy.take_sent("ann")
    assert (sent["acquire"], sent["tokens"], sent["request_ids"]) == (2, 1, 1)
    assert proxy.take_sent("ann")["acquire"] == 0
    assert proxy.take_sent("bob")["acquire"] == 1


def test_a_refused_connection_is_no_request_and_the_port_opens_again(proxy: FaultProxy, ann: Actor, bob: Actor) -> None:
    ann.acquire()
    proxy.take_sent("ann")
    proxy.add_fault({"kind": "drop_before", "actor": "ann", "lasts_ms": 500})
    assert bob.acquire() == 409
    for _ in range(2):
        ann.connection.close()
        with pytest.raises(ConnectionRefusedError):
            ann.acquire()
    ann.connection.close()
    proxy.follow(0.5)
    assert proxy.take_sent("ann")["acquire"] == 0
    assert ann.acquire() == 201


@pytest.mark.parametrize(("kind", "served"), [("reset", False), ("drop_after", True), ("drop_within", True)])
def test_a_connection_that_breaks(proxy: FaultProxy, ann: Actor, bob: Actor, kind: str, served: bool) -> None:
    proxy.add_fault({"kind": kind, "of": ["acquire"], "count": 1})
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        ann.acquire()
    ann.connection.close()
    assert bob.is_held() is served


def test_the_server_sees_that_a_waiting_client_has_gone(proxy: FaultProxy, ann: Actor, bob: Actor) -> None:
    ann.acquire()
    bob.send(body='{"ttl_seconds": 30, "wait_seconds": 50}')
    wait_for(at_rest_with(proxy, 1))
    bob.connection.close()
    wait_for(at_rest_with(proxy, 0))


@pytest.mark.parametrize(("kind", "served"), [("hang_before", False), ("hang_after", True)])
def test_a_request_that_hangs_is_open_and_at_rest_until_its_client_leaves(
    proxy: FaultProxy, ann: Actor, bob: Actor, kind: str, served: bool
) -> None:
    proxy.add_fault({"kind": kind, "of": ["acquire"]})
    ann.send()
    wait_for(at_rest_with(proxy, 1))
    proxy.clear_faults()
    assert bob.is_held() is served
    ann.connection.close()
    wait_for(at_rest_with(proxy, 0))


def test_a_delay_ends_by_the_scenarios_clock(proxy: FaultProxy, ann: Actor, bob: Actor) -> None:
    proxy.add_fault({"kind": "delay_before", "delay_ms": 4_000, "of": ["acquire"], "count": 1})
    ann.send()
    wait_for(at_rest_with(proxy, 1))
    assert proxy.state().next_due_seconds == 4.0
    assert not bob.is_held()
    proxy.follow(4.0)
    assert ann.connection.getresponse().status == 201


def test_scripted_and_altered_responses(proxy: FaultProxy, ann: Actor) -> None:
    proxy.add_fault({"kind": "answer_429", "count": 1, "retry_after_seconds": 7})
    ann.send()
    response = ann.connection.getresponse()
    assert (response.status, response.headers["Retry-After"]) == (429, "7")
    assert b"lock_rate_limited" in response.read()
    proxy.add_fault({"kind": "altered", "count": 1, "answer": {"fencing_token": 1}})
    ann.send()
    response = ann.connection.getresponse()
    assert (response.status, b'"fencing_token": 1' in response.read()) == (201, True)


def test_a_stream_is_open_and_at_rest_until_it_is_cut(proxy: FaultProxy, ann: Actor) -> None:
    ann.connection.request("GET", f"/locks/{KEY}/events", headers={**ann.headers, "Accept": "text/event-stream"})
    response = ann.connection.getresponse()
    assert response.status == 200
    wait_for(at_rest_with(proxy, 1))
    assert proxy.take_sent("ann")["stream"] == 1
    proxy.cut_streams("ann")
    with response, pytest.raises(ConnectionResetError):
        response.read()
    wait_for(at_rest_with(proxy, 0))


def test_a_restart_closes_idle_connections(proxy: FaultProxy, ann: Actor) -> None:
    ann.acquire()
    connected = ann.connection.sock
    assert isinstance(connected, socket.socket)
    proxy.restart_server()
    assert connected.recv(1) == b""


def test_every_response_changes_what_was_exchanged(proxy: FaultProxy, ann: Actor) -> None:
    before = proxy.state().exchanged
    assert proxy.state().exchanged == before
    threading.Thread(target=ann.acquire).start()
    wait_for(lambda: proxy.take_sent("ann")["acquire"] == 1)
    assert proxy.state().exchanged != before
