"""Holder processes that are killed or paused during their work: the lock is taken over, their late writes refused."""

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
from testsupport.server_process import ServerProcess

from volcano_locks import Client, Lease, LockHeldError

from .lock_holder_process import TTL_SECONDS, write

TAKEOVER_SECONDS = TTL_SECONDS + 1
WAIT_SECONDS = 30
pytestmark = pytest.mark.real_time


class HolderProcess:
    """The process of lock_holder_process.py."""

    def __init__(self, key: str, database: Path, url: str, service_key: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("lock_holder_process.py"), key, database],
            env=os.environ | {"VOLCANO_API_URL": url, "VOLCANO_SERVICE_KEY": service_key},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def request_write(self) -> None:
        """Have it read its guard and then write."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read_message(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message


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
def new_holder(server: ServerProcess, service_key: str, database: Path) -> Iterator[Callable[[str], HolderProcess]]:
    """Starts holders. They are killed after the test, paused ones included."""
    holders: list[HolderProcess] = []

    def new(key: str) -> HolderProcess:
        holders.append(HolderProcess(key, database, server.url, service_key))
        return holders[-1]

    yield new
    for holder in holders:
        holder.process.kill()
        holder.process.communicate()


def take_over(client: Client, key: str) -> tuple[Lease, float]:
    """Try until the lock is free. Returns the lease and when it was requested."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        requested_at = time.monotonic()
        try:
            return client.locks.acquire(key, ttl=60), requested_at
        except LockHeldError:
            assert requested_at < deadline
            time.sleep(0.02)


def test_a_killed_holder_is_taken_over_and_a_paused_one_finds_its_lease_lost(
    client: Client, new_holder: Callable[[str], HolderProcess], database: Path
) -> None:
    """LEASE-3, LEASE-6, LEASE-7, SDK-4, case 11: soon after the lease and its grace end, and not before.

    The paused holder finds its guard lost first when it resumes. The row refuses its late write, and neither its end
    nor its release affects the new holder.
    """
    killed, paused = new_holder("killed"), new_holder("paused")
    tokens = {holder: holder.read_message()["held"] for holder in (killed, paused)}
    for holder in tokens:
        holder.request_write()
        assert holder.read_message() == {"lost": False, "accepted": True}
    granted_until, deadline = client.locks.get("killed").expires_at, time.monotonic() + WAIT_SECONDS
    while client.locks.get("killed").expires_at == granted_until:  # the takeover counts from the last renewal
        assert time.monotonic() < deadline
        time.sleep(0.05)
    paused.process.send_signal(signal.SIGSTOP)
    killed.process.kill()
    killed.process.wait()
    ended_at, expires_at = time.monotonic(), client.locks.get("killed").expires_at
    assert expires_at is not None
    remaining_seconds = expires_at.timestamp() - time.time()

    lease, requested_at = take_over(client, "killed")
    assert lease.fencing_token > tokens[killed]
    assert remaining_seconds + 1 - 0.5 <= requested_at - ended_at <= TAKEOVER_SECONDS + 5
    lease, _ = take_over(client, "paused")
    assert lease.fencing_token > tokens[paused]
    assert write(str(database), "paused", "successor", lease.fencing_token)

    paused.request_write()  # this request waits in its input when the process resumes
    paused.process.send_signal(signal.SIGCONT)
    assert paused.read_message() == {"lost": True, "accepted": False}
    last_output, _ = paused.process.communicate()
    assert json.loads(last_output) == {"ended": "lost"}
    assert client.locks.get("paused").fencing_token == lease.fencing_token
    with closing(connect(database)) as connection:
        rows = connection.execute("SELECT key, writer FROM report ORDER BY key").fetchall()
    assert rows == [("killed", "worker"), ("paused", "successor")]
