"""Holders that are killed or stopped in the middle of their work, as processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from sqlite3 import connect
from typing import Any

import pytest

from volcano_locks import Client, Lease, LockHeldError

from .conftest import ServerProcess
from .worker import TTL_SECONDS, write

TAKEOVER_SECONDS = TTL_SECONDS + 1
WAIT_SECONDS = 30
pytestmark = pytest.mark.real_time


class Worker:
    """The process of worker.py."""

    def __init__(self, key: str, database: Path, url: str, service_key: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("worker.py"), key, database],
            env=os.environ | {"VOLCANO_API_URL": url, "VOLCANO_SERVICE_KEY": service_key},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self) -> None:
        """Tell it to look at its guard and write."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        heard: dict[str, Any] = json.loads(self.process.stdout.readline())
        return heard


@pytest.fixture
def service_key(server: ServerProcess) -> str:
    return server.new_service_key()


@pytest.fixture
def client(server: ServerProcess, service_key: str) -> Iterator[Client]:
    with Client(server.url, service_key) as one:
        yield one


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def new_worker(server: ServerProcess, service_key: str, database: Path) -> Iterator[Callable[[str], Worker]]:
    """Workers that are gone after the test, stopped ones included."""
    workers: list[Worker] = []

    def new(key: str) -> Worker:
        workers.append(Worker(key, database, server.url, service_key))
        return workers[-1]

    yield new
    for worker in workers:
        worker.process.kill()
        worker.process.communicate()


def taken_over(client: Client, key: str) -> tuple[Lease, float]:
    """The lease of the one who tries until the lock is free, and when it was asked for."""
    gives_up_at = time.monotonic() + WAIT_SECONDS
    while True:
        asked_at = time.monotonic()
        try:
            return client.locks.acquire(key, ttl=60), asked_at
        except LockHeldError:
            assert asked_at < gives_up_at
            time.sleep(0.02)


def test_a_killed_holder_is_followed_after_its_lease_and_a_stopped_one_learns_that_it_is_too_late(
    client: Client, new_worker: Callable[[str], Worker], database: Path
) -> None:
    """LEASE-3, LEASE-6, LEASE-7, SDK-4, case 11: not before the lease's end and its grace, and soon after.

    The holder that goes on after a stop finds its guard lost before it does anything else; what it writes all the
    same is refused by the row, and neither its end nor its release disturbs the one who holds the lock now.
    """
    killed, stopped = new_worker("killed"), new_worker("stopped")
    tokens = {worker: worker.hear()["held"] for worker in (killed, stopped)}
    for worker in tokens:
        worker.say()
        assert worker.hear() == {"lost": False, "accepted": True}
    granted_until, gives_up_at = client.locks.get("killed").expires_at, time.monotonic() + WAIT_SECONDS
    while client.locks.get("killed").expires_at == granted_until:  # the takeover counts from the last renewal
        assert time.monotonic() < gives_up_at
        time.sleep(0.05)
    stopped.process.send_signal(signal.SIGSTOP)
    killed.process.kill()
    killed.process.wait()
    ended_at, expires_at = time.monotonic(), client.locks.get("killed").expires_at
    assert expires_at is not None
    left_seconds = expires_at.timestamp() - time.time()

    lease, asked_at = taken_over(client, "killed")
    assert lease.fencing_token > tokens[killed]
    assert left_seconds + 1 - 0.5 <= asked_at - ended_at <= TAKEOVER_SECONDS + 5
    lease, _ = taken_over(client, "stopped")
    assert lease.fencing_token > tokens[stopped]
    assert write(str(database), "stopped", "successor", lease.fencing_token)

    stopped.say()  # it waits in its input when the process goes on
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.hear() == {"lost": True, "accepted": False}
    last_words, _ = stopped.process.communicate()
    assert json.loads(last_words) == {"ended": "lost"}
    assert client.locks.get("stopped").fencing_token == lease.fencing_token
    with closing(connect(database)) as connection:
        rows = connection.execute("SELECT key, writer FROM report ORDER BY key").fetchall()
    assert rows == [("killed", "worker"), ("stopped", "successor")]
