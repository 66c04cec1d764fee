"""CLI-13: `dev` has everything ready, and what it prints can be pasted."""

import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from volcano_locks_server.runtime.settings import PORT_DEFAULT

from .conftest import WAIT_SECONDS, ServerProcess, status_of


def read_output(server: ServerProcess) -> str:
    server.read_until(r"(Ctrl-C stops the server\.)")
    return server.text


def parse_exports(output: str) -> dict[str, str]:
    return dict(re.findall(r"^ *export (\w+)=(\S+)$", output, re.MULTILINE))


def test_its_output_can_be_pasted_into_a_shell(start: Callable[..., ServerProcess]) -> None:
    output = read_output(start("dev", "--port", "0", announces_on="stdout"))
    assert "DEVELOPMENT ONLY" in output.splitlines()[0]
    pasted = [line for line in output.splitlines() if re.match(r" *(export|volcano-locks) ", line)]
    script = "\n".join([*pasted, "volcano-locks project list"])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("it works\n")
    assert "dev" in done.stdout


def test_it_fits_a_terminal_of_80_columns(start: Callable[..., ServerProcess]) -> None:
    output = read_output(start("dev", "--port", "0", announces_on="stdout", PYTHONIOENCODING="utf-8"))
    assert max(len(line) for line in output.splitlines()) <= 79


def test_a_stream_without_line_drawing_gets_plain_dashes(start: Callable[..., ServerProcess]) -> None:
    assert read_output(start("dev", "--port", "0", announces_on="stdout", PYTHONIOENCODING="ascii")).isascii()


def test_it_uses_the_next_port_if_its_own_is_taken(start: Callable[..., ServerProcess]) -> None:
    try:
        taken = socket.create_server(("127.0.0.1", PORT_DEFAULT))
    except OSError:  # another process has it, which is as good
        taken = socket.create_server(("127.0.0.1", 0))
    with taken:
        server = start("dev", announces_on="both")
        exports = parse_exports(read_output(server))
        assert f"port {PORT_DEFAULT} is taken, trying the next one" in server.text
        assert not exports["VOLCANO_API_URL"].endswith(f":{PORT_DEFAULT}")
        assert server.stop(signal.SIGTERM) == 0


def test_it_listens_on_loopback_and_ignores_the_environment(start: Callable[..., ServerProcess]) -> None:
    environment = {
        "VOLCANO_LOCKS_HOST": "0.0.0.0",
        "VOLCANO_LOCKS_STORE": "sqlite:///other.db",
        "VOLCANO_LOCKS_ADMIN_TOKEN": "admin-token-of-production",
    }
    exports = parse_exports(read_output(start("dev", "--port", "0", announces_on="stdout", **environment)))
    assert exports["VOLCANO_API_URL"].startswith("http://127.0.0.1:")
    assert status_of(f"{exports['VOLCANO_API_URL']}/projects", bearer="admin-token-of-production") == 401
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_on_a_signal(start: Callable[..., ServerProcess], number: signal.Signals) -> None:
    server = start("dev", "--port", "0", announces_on="stdout")
    read_output(server)
    assert server.stop(number) == 0


def test_it_ends_with_its_terminal(start: Callable[..., ServerProcess]) -> None:
    """OPS-7."""
    server = start("dev", "--port", "0", announces_on="stdout")
    read_output(server)
    assert server.stop(signal.SIGHUP) == -signal.SIGHUP


def test_with_a_store_data_is_kept_and_each_start_has_a_new_secret(start: Callable[..., ServerProcess]) -> None:
    secrets: list[str] = []
    made: list[int] = []
    for _ in range(2):
        server = start("dev", "--store", "sqlite:///locks.db", "--port", "0", announces_on="stdout")
        exports = parse_exports(read_output(server))
        url, admin_token = exports["VOLCANO_API_URL"], exports["VOLCANO_LOCKS_ADMIN_TOKEN"]
        made.append(status_of(f"{url}/projects", bearer=admin_token, body=b'{"name": "kept"}'))
        secrets.append(exports["VOLCANO_SERVICE_KEY"])
        found = [status_of(f"{url}/locks/any", bearer=secret) for secret in secrets]
        assert server.stop(signal.SIGTERM) == 0
    assert made == [201, 409]
    assert found == [401, 200]
    assert not Path("locks.db.admin-token").exists()
