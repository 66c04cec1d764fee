"""`serve` says where it is, keeps its admin token to itself, and stops when asked (CLI-14, CLI-15)."""

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

from .conftest import WAIT_SECONDS, Ended, Running, status_of

LISTENING = r"listening on (\S+),"
TOKEN = "admin-token-of-the-test"


def test_it_says_where_it_listens_and_where_the_admin_token_is(start: Callable[..., Running]) -> None:
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


def test_stderr_is_lines_of_json_and_nothing_else(start: Callable[..., Running]) -> None:
    """OPS-6."""
    server = start("serve", "--store", "memory://", "--port", "0", announces_on="stderr")
    server.read_until(r'("event":"started")')
    assert server.stop(signal.SIGTERM) == 0
    server.read_until(r'("event":"stopped")')
    assert [json.loads(line)["event"] for line in server.text.splitlines()] == ["started", "stopping", "stopped"]


def test_the_admin_token_outlives_a_restart(start: Callable[..., Running]) -> None:
    tokens = set()
    for _ in range(2):
        server = start("serve", "--store", "sqlite:///locks.db", "--port", "0")
        url = server.read_until(LISTENING)
        tokens.add(token := Path("locks.db.admin-token").read_text().strip())
        assert status_of(f"{url}/projects", bearer=token) == 200
        assert server.stop(signal.SIGTERM) == 0
    assert len(tokens) == 1


def test_a_flag_beats_a_variable_and_a_variable_beats_the_default(start: Callable[..., Running]) -> None:
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


def test_a_store_in_memory_without_a_token_says_that_nobody_can_make_a_project(start: Callable[..., Running]) -> None:
    server = start("serve", "--store", "memory://", "--port", "0")
    server.read_until(r"nobody can make a project: set (VOLCANO_LOCKS_ADMIN_TOKEN)")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_answer_in_flight_go_out(start: Callable[..., Running], number: signal.Signals) -> None:
    """HTTP-23: a request that has begun is answered, then the process ends with 0."""
    server, connection = begun_request(start)
    with connection:
        server.process.send_signal(number)
        server.read_until(r'("event":"stopping")')
        connection.sendall(b'{"name": "late"}')
        assert connection.recv(4096).startswith(b"HTTP/1.1 201 ")
    assert server.process.wait(WAIT_SECONDS) == 0


def test_a_second_signal_ends_it_at_once(start: Callable[..., Running]) -> None:
    server, connection = begun_request(start)
    with connection:
        server.process.send_signal(signal.SIGTERM)
        server.read_until(r'("event":"stopping")')
        began = time.monotonic()
        assert server.stop(signal.SIGTERM) == -signal.SIGTERM
        assert time.monotonic() - began < 10, "the time a graceful stop may take is 15 s"


def begun_request(start: Callable[..., Running]) -> tuple[Running, socket.socket]:
    """A server, and a connection on which a request's head has arrived and its body has not."""
    server = start("serve", "--store", "memory://", "--port", "0", VOLCANO_LOCKS_ADMIN_TOKEN=TOKEN)
    port = int(server.read_until(LISTENING).rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    head = f"POST /projects HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 16\r\n"
    connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 100 "), "the server asks for the body, so the request has begun"
    return server, connection


def test_tls_with_a_certificate_and_its_key(start: Callable[..., Running]) -> None:
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -keyout key.pem -out cert.pem"
    subprocess.run([*make.split(), "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True)
    server = start(
        *("serve", "--store", "memory://", "--port", "0", "--tls-certificate", "cert.pem", "--tls-key", "key.pem")
    )
    url = server.read_until(LISTENING)
    assert url.startswith("https://")
    trust = ssl.create_default_context(cafile="cert.pem")
    with urllib.request.urlopen(f"{url}/healthz", context=trust, timeout=WAIT_SECONDS) as answer:
        assert answer.status == 200


def test_behind_a_proxy_it_listens_everywhere_without_tls(start: Callable[..., Running]) -> None:
    server = start("serve", "--store", "memory://", "--host", "0.0.0.0", "--port", "0", "--behind-proxy")
    port = server.read_until(LISTENING).rpartition(":")[2]
    assert status_of(f"http://127.0.0.1:{port}/healthz") == 200


def test_the_help_names_every_setting_and_fits_a_terminal(
    command: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "80")
    for name in ("serve", "dev"):
        ended = command(name, "--help")
        assert ended.exit_code == 0
        assert max(len(line) for line in ended.stdout.splitlines()) <= 80
