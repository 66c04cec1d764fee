"""A SQLite server whose machine's date is set while clients hold leases."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from testsupport.faked_date import FakedDate
from testsupport.lease_holders import TTL_SECONDS, hold_all, take_all_over
from testsupport.server_process import ServerProcess

from volcano_locks_server.runtime.hold_report import CHECK_EVERY_SECONDS

STEPS_SECONDS = [5, 60, 3_600, -3_600]
pytestmark = pytest.mark.real_time


@pytest.fixture
def date(tmp_path: Path) -> FakedDate:
    return FakedDate(tmp_path / "date")


@pytest.fixture
def server(tmp_path: Path, date: FakedDate) -> Iterator[ServerProcess]:
    process = ServerProcess(f"sqlite:///{tmp_path}/locks.db", environment=date.environment)
    process.start()
    yield process
    process.close()


@pytest.mark.parametrize("seconds", STEPS_SECONDS)
def test_a_restart_after_the_date_was_set_ends_no_lease(server: ServerProcess, date: FakedDate, seconds: int) -> None:
    """LEASE-1, LEASE-17, case 67: the time goes on within the boot, so no takeover is held for longer either."""
    service_key = server.new_service_key()
    held = hold_all(server.url, service_key)
    date.step(seconds)
    server.terminate()
    server.start()
    assert httpx2.get(f"{server.url}/readyz").json() == {"status": "ok"}
    take_all_over(server.url, service_key, held, within_seconds=TTL_SECONDS + 10)


@pytest.mark.parametrize("seconds", [0, 60, 3_600])
def test_a_fresh_machine_holds_takeovers_and_says_so(
    server: ServerProcess, date: FakedDate, tmp_path: Path, seconds: int
) -> None:
    """LEASE-17, case 67: in another boot, without a synchronised clock. Log and `/readyz` say until when, and why."""
    service_key = server.new_service_key()
    held = hold_all(server.url, service_key)
    server.terminate()
    with sqlite3.connect(tmp_path / "locks.db") as connection:
        connection.execute("UPDATE newest_instant SET boot_id = 'of another machine', is_synchronised = 0")
    connection.close()
    date.step(seconds)
    server.start()
    ready = httpx2.get(f"{server.url}/readyz")
    assert ready.status_code == 200
    assert 0 < ready.json()["takeovers_held"]["seconds"] <= TTL_SECONDS + 1
    assert "not known to have passed" in ready.json()["takeovers_held"]["why"]
    take_all_over(server.url, service_key, held, within_seconds=2 * TTL_SECONDS + 10)
    time.sleep(2 * CHECK_EVERY_SECONDS)
    log = server.start_output + server.output()
    assert '"takeovers_held"' in log
    assert '"takeovers_allowed"' in log
