"""`reset-clock` shows what it will do, asks, and does it (CLI-32)."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from volcano_locks_server.ports.lock_store import lock_name
from volcano_locks_server.rules.lease import Acquire
from volcano_locks_server.stores import open_store
from volcano_locks_server.testing import ManualClock, running_server

from ..stores.store_actions import digest, key, run_commands
from .conftest import Completed

Command = Callable[..., Completed]

HOUR_MS = 3_600_000
STORE = "sqlite:///locks.db"


@pytest.fixture
def an_hour_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that was served under such a clock, in the current folder; one lease is held."""
    monkeypatch.chdir(tmp_path)

    async def serve() -> None:
        store = await open_store(STORE, ManualClock(time.time_ns() // 1_000_000 + HOUR_MS))
        await run_commands(store.locks, (key("a"), Acquire(digest("me"), 90)))
        await store.close()

    asyncio.run(serve())


@pytest.mark.usefixtures("an_hour_ahead")
def test_it_explains_itself_and_asks(command: Command, tmp_path: Path) -> None:
    """CLI-32, LEASE-19, case 68: without a terminal and without --yes nothing changes."""
    before = (tmp_path / "locks.db").read_bytes()
    result = command("reset-clock", "--store", STORE)
    assert result.exit_code == 64
    for text in (
        "was served until",
        "the clock now reads",
        "all instants of its locks move back",
        "1 leases stay held",
        "1 min 30 s",
    ):
        assert text in result.stderr.replace("\n", " ")
    assert "pass --yes" in result.stderr
    assert (tmp_path / "locks.db").read_bytes() == before


@pytest.mark.usefixtures("an_hour_ahead")
def test_the_store_is_served_again(command: Command) -> None:
    """CLI-32, LEASE-19, case 68."""
    refused = command("serve", "--store", STORE, "--port", "0")
    assert refused.exit_code == 69
    assert "volcano-locks reset-clock" in refused.stderr
    result = command("reset-clock", "--store", STORE, "--yes", "--json")
    assert result.exit_code == 0
    done = json.loads(result.stdout)
    assert abs(done["set_back_seconds"] - 3_600) < 60
    assert done["held"] == 1
    with running_server(store_url=STORE):
        in_use = command("reset-clock", "--store", STORE, "--yes")
    assert in_use.exit_code == 69
    assert "in use by another server" in in_use.stderr
    again = command("reset-clock", "--store", STORE)
    assert again.exit_code == 0
    assert "nothing to do" in again.stdout


@pytest.mark.usefixtures("an_hour_ahead")
def test_damaged_records_are_named(command: Command) -> None:
    """CLI-32, LEASE-18: each with the command that repairs it."""
    with closing(sqlite3.connect("locks.db")) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE lock SET fencing_token = -1")
    name = lock_name(key("a"))
    asked = command("reset-clock", "--store", STORE)
    assert f"{name} is damaged and stays as it is: volcano-locks doctor --repair {name}" in asked.stderr
    done = json.loads(command("reset-clock", "--store", STORE, "--yes", "--json").stdout)
    assert done["damaged"] == [name]
    assert done["held"] == 0


@pytest.mark.parametrize(("store", "text"), [("memory://", "keeps nothing"), ("oracle://u:hush@h/d", "store must be")])
def test_a_store_without_a_stored_clock_is_refused(command: Command, store: str, text: str) -> None:
    """CLI-32."""
    result = command("reset-clock", "--store", store, "--yes")
    assert result.exit_code == 64
    assert text in result.stderr
    assert "hush" not in result.stderr
