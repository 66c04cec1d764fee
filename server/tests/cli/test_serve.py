"""CLI-14, CLI-15: `serve` prints its address, stores its admin token, and stops on a signal."""

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from testsupport.certificates import new_certificate

from .conftest import WAIT_SECONDS, Completed, ServerProcess, status_of

LISTENING = r"listening on (\S+),"
TOKEN = "admin-token-of-the-test"


def test_it_prints_its_address_and_the_path_of_the_admin_token(start: Callable[..., ServerProcess]) -> None:
    server = start("serve", "--store", "sqlite:///locks.db", "--port", "0")
    url = server.read_until(LISTENING)
    token_file = Path(server.read_until(r"the admin token is in (\S+)"))
    assert token_file == Path("locks.db.admin-token").absolute()
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    token = token_file.read_text().strip()
    assert status_of(f"{url}/projects", bearer=token) == 200
    assert server.stop(signal.SIGTERM) == 0
    server.read_until(r'("event":"stopped")')
    assert token not in server.text


def test_stderr_has_only_json_lines(start: Callable[..., ServerProcess]) -> None:
    """OPS-6."""
    server = start("serve", "--store", "memory://", "--port", "0", announces_on="stderr")
    server.read_until(r'("event":"started")')
    assert server.stop(signal.SIGTERM) == 0
    server.read_until(r'("event":"stopped")')
    assert [json.loads(line)["event"] for line in server.text.splitlines()] == ["started", "stopping", "stopped"]


def test_the_admin_token_survives_a_restart(start: Callable[..., ServerProcess]) -> None:
    tokens = set()
    for _ in range(2):
        server = start("serve", "--store", "sqlite:///locks.db", "--port", "0")
        url = server.read_until(LISTENING)
        tokens.add(token := Path("locks.db.admin-token").read_text().strip())
        assert status_of(f"{url}/projects", bearer=token) == 200
        assert server.stop(signal.SIGTERM) == 0
    assert len(tokens) == 1


def test_a_flag_overrides_a_variable_and_a_variable_the_default(start: Callable[..., ServerProcess]) -> None:
    server = start(
        "serve",
        "--port",
        "0",
        VOLCANO_LOCKS_PORT="not a port",
        VOLCANO_LOCKS_STORE="memory://",
        VOLCANO_LOCKS_ADMIN_TOKEN=TOKEN,
    )
    url = server.read_until(LISTENING)
    server.read_until(r"(data in memory://)")
    server.read_until(r"(the admin token is the one in VOLCANO_LOCKS_ADMIN_TOKEN)")
    assert status_of(f"{url}/projects", bearer=TOKEN) == 200
    assert TOKEN not in server.text
    assert list(Path().iterdir()) == []


def test_memory_without_a_token_warns_that_no_projects_can_be_created(start: Callable[..., ServerProcess]) -> None:
    server = start("serve", "--store", "memory://", "--port", "0")
    assert server.read_until(r"no projects can be created: set (\S+)") == "VOLCANO_LOCKS_ADMIN_TOKEN"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_request_in_progress_finish(
    start: Callable[..., ServerProcess], number: signal.Signals
) -> None:
    """HTTP-23: a request in progress gets its response, then the process ends with 0."""
    server, connection = started_request(start)
    with connection:
        server.process.send_signal(number)
        server.read_until(r'("event":"stopping")')
        connection.sendall(b'{"name": "late"}')
        assert connection.recv(4096).startswith(b"HTTP/1.1 201 ")
    assert server.process.wait(WAIT_SECONDS) == 0


def test_a_second_signal_ends_it_at_once(start: Callable[..., ServerProcess]) -> None:
    server, connection = started_request(start)
    with connection:
        server.process.send_signal(signal.SIGTERM)
        server.read_until(r'("event":"stopping")')
        began = time.monotonic()
        assert server.stop(signal.SIGTERM) == -signal.SIGTERM
        assert time.monotonic() - began < 10, "a graceful stop may take 15 s"


def started_request(start: Callable[..., ServerProcess]) -> tuple[ServerProcess, socket.socket]:
    """A server, and a connection that has sent a request's head but not its body."""
    server = start("serve", "--store", "memory://", "--port", "0", VOLCANO_LOCKS_ADMIN_TOKEN=TOKEN)
    port = int(server.read_until(LISTENING).rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    head = f"POST /projects HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 16\r\n"
    connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 100 "), (
        "the server asks for the body, so the request has started"
    )
    return server, connection


def test_tls_with_a_certificate_and_its_key(start: Callable[..., ServerProcess]) -> None:
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -keyout key.pem -out cert.pem"
    subprocess.run([*make.split(), "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True)
    server = start(
        *("serve", "--store", "memory://", "--port", "0", "--tls-certificate", "cert.pem", "--tls-key", "key.pem")
    )
    url = server.read_until(LISTENING)
    assert url.startswith("https://")
    trust = ssl.create_default_context(cafile="cert.pem")
    with urllib.request.urlopen(f"{url}/healthz", context=trust, timeout=WAIT_SECONDS) as response:
        assert response.status == 200


def test_behind_a_proxy_it_listens_everywhere_without_tls(start: Callable[..., ServerProcess]) -> None:
    server = start("serve", "--store", "memory://", "--host", "0.0.0.0", "--port", "0", "--behind-proxy")
    port = server.read_until(LISTENING).rpartition(":")[2]
    assert status_of(f"http://127.0.0.1:{port}/healthz") == 200


def test_help_fits_80_columns(command: Callable[..., Completed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "80")
    for name in ("serve", "dev"):
        result = command(name, "--help")
        assert result.exit_code == 0
        assert max(len(line) for line in result.stdout.splitlines()) <= 80


@pytest.mark.real_time
def test_a_hangup_reloads_the_certificate(start: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """OPS-7, case 54: the process goes on, and new connections get the new certificate."""
    files = new_certificate(tmp_path)
    server = start(
        *("serve", "--store", "memory://", "--port", "0"),
        *("--tls-certificate", str(files.certificate), "--tls-key", str(files.key)),
    )
    url = server.read_until(LISTENING)
    new = new_certificate(tmp_path)
    server.process.send_signal(signal.SIGHUP)
    server.read_until(r'("event":"certificate_reloaded")')
    with urllib.request.urlopen(f"{url}/healthz", context=new.trusting_context(), timeout=WAIT_SECONDS) as response:
        assert response.status == 200
    assert server.stop(signal.SIGTERM) == 0


@pytest.mark.real_time
def test_a_hangup_without_tls_is_ignored(start: Callable[..., ServerProcess]) -> None:
    """OPS-7, case 54: log rotation sends SIGHUP too."""
    server = start("serve", "--store", "memory://", "--port", "0")
    url = server.read_until(LISTENING)
    server.process.send_signal(signal.SIGHUP)
    server.read_until(r'("event":"reload_ignored")')
    assert status_of(f"{url}/healthz") == 200
    assert server.stop(signal.SIGTERM) == 0
