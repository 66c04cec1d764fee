"""`dev` is one command with everything ready: what it shows can be pasted, and works (CLI-13)."""

import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from volcano_locks_server.runtime.settings import PORT_DEFAULT

from .conftest import PROGRAM, WAIT_SECONDS, Running, status_of


def shown_by(server: Running) -> str:
    server.read_until(r"(Ctrl-C stops it\.)")
    return server.text


def exports_in(shown: str) -> dict[str, str]:
    return dict(re.findall(r"^ *export (\w+)=(\S+)$", shown, re.MULTILINE))


def test_what_it_shows_can_be_pasted_into_a_shell(start: Callable[..., Running]) -> None:
    shown = shown_by(start("dev", "--port", "0", announces_on="stdout"))
    assert "DEVELOPMENT ONLY" in shown.splitlines()[0]
    pasted = [line for line in shown.splitlines() if re.match(r" *(export|volcano-locks) ", line)]
    script = "\n".join([f"PATH={PROGRAM.parent}:$PATH", *pasted, "volcano-locks project list"])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("it works\n")
    assert "dev" in done.stdout


def test_it_fits_a_terminal_of_80_columns(start: Callable[..., Running]) -> None:
    shown = shown_by(start("dev", "--port", "0", announces_on="stdout", PYTHONIOENCODING="utf-8"))
    assert max(len(line) for line in shown.splitlines()) <= 79


def test_a_stream_without_line_drawing_gets_plain_dashes(start: Callable[..., Running]) -> None:
    assert shown_by(start("dev", "--port", "0", announces_on="stdout", PYTHONIOENCODING="ascii")).isascii()


def test_it_takes_the_next_port_when_its_own_is_taken(start: Callable[..., Running]) -> None:
    try:
        taken = socket.create_server(("127.0.0.1", PORT_DEFAULT))
    except OSError:  # somebody else has it already, which serves as well
        taken = socket.create_server(("127.0.0.1", 0))
    with taken:
        server = start("dev", announces_on="both")
        exports = exports_in(shown_by(server))
        assert f"port {PORT_DEFAULT} is taken, trying the next one" in server.text
        assert not exports["VOLCANO_API_URL"].endswith(f":{PORT_DEFAULT}")
        assert server.stop(signal.SIGTERM) == 0


def test_it_listens_on_this_machine_alone_and_takes_nothing_from_the_environment(start: Callable[..., Running]) -> None:
    surroundings = {
        "VOLCANO_LOCKS_HOST": "0.0.0.0",
        "VOLCANO_LOCKS_STORE": "sqlite:///other.db",
        "VOLCANO_LOCKS_ADMIN_TOKEN": "admin-token-of-production",
    }
    exports = exports_in(shown_by(start("dev", "--port", "0", announces_on="stdout", **surroundings)))
    assert exports["VOLCANO_API_URL"].startswith("http://127.0.0.1:")
    assert status_of(f"{exports['VOLCANO_API_URL']}/projects", bearer="admin-token-of-production") == 401
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_when_asked(start: Callable[..., Running], number: signal.Signals) -> None:
    server = start("dev", "--port", "0", announces_on="stdout")
    shown_by(server)
    assert server.stop(number) == 0


def test_with_a_store_its_data_stays_and_each_start_has_a_new_secret(start: Callable[..., Running]) -> None:
    secrets: list[str] = []
    made: list[int] = []
    for _ in range(2):
        server = start("dev", "--store", "sqlite:///locks.db", "--port", "0", announces_on="stdout")
        exports = exports_in(shown_by(server))
        url, admin_token = exports["VOLCANO_API_URL"], exports["VOLCANO_LOCKS_ADMIN_TOKEN"]
        made.append(status_of(f"{url}/projects", bearer=admin_token, body=b'{"name": "kept"}'))
        secrets.append(exports["VOLCANO_SERVICE_KEY"])
        found = [status_of(f"{url}/locks/any", bearer=secret) for secret in secrets]
        assert server.stop(signal.SIGTERM) == 0
    assert made == [201, 409]
    assert found == [401, 200]
    assert not Path("locks.db.admin-token").exists()
