"""CLI-35: a server cannot control the terminal, whatever it sends to whichever command.

The server of these tests answers every request with control characters in every text.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from click.testing import Result

from volcano_locks.cli.output import visible, visible_lines

from .terminal_session import Session

Invoke = Callable[..., Result]
CONTROL = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]|[\U000e0000-\U000e007f]"
)
HOSTILE = (
    "a\x1b[2J\x1b]0;owned\x07\r\x08\x9b31m\x85\x7f\t\u202egpj\u2066\u2028\u200f\ud800\u200b\xad\ufeff\U000e0041"
    "\nvolcano-locks: forged"
)
TOKEN = "00000000-0000-4000-8000-000000000001"
AT = "2026-07-22T09:00:40.250Z"
LATER = "2099-07-22T09:00:40.250Z"

LEASE = {"expires_at": LATER, "fencing_token": 7}
ROW = {"key": HOSTILE, "held": True, "holder": HOSTILE, "acquired_at": AT, "renewed_at": AT, "ttl_seconds": 30,
       "waiters": 1, **LEASE}  # fmt: skip
PROJECT = {"id": "p", "name": HOSTILE, "requests_per_minute": 600, "created_at": HOSTILE}
KEY = {"id": "k", "project_id": "p", "name": HOSTILE, "permissions": [HOSTILE], "key_prefix": HOSTILE,
       "expires_at": LATER, "last_used_at": AT, "created_at": HOSTILE, "key_value": HOSTILE}  # fmt: skip
EVENT = {"key": HOSTILE, "holder": HOSTILE, "fencing_token": HOSTILE, "at": AT, "why": HOSTILE, "reason": HOSTILE}
HOLD = {"key": HOSTILE, "fencing_token": 7, "holder": HOSTILE, "key_id": "k", "key_name": HOSTILE, "address": HOSTILE,
        "client": HOSTILE, "began": "free", "waited_seconds": None, "began_at": AT, "renewals": 0, "renewed_at": None,
        "ended": "forced", "ended_by": HOSTILE, "reason": HOSTILE, "ended_at": AT, "expires_at": LATER,
        "held_seconds": 1.5}  # fmt: skip
ENTRY = {"id": "e", "at": AT, "action": HOSTILE, "actor": {"kind": "service_key", "id": "k", "name": HOSTILE},
         "address": HOSTILE, "project_id": "p", "target": {"kind": HOSTILE, "id": "t", "name": HOSTILE},
         "before": {HOSTILE: HOSTILE}, "after": {HOSTILE: [HOSTILE]}, "reason": HOSTILE, "request_id": "r"}  # fmt: skip
PROBLEM = {"error": HOSTILE, "code": HOSTILE, "holder": HOSTILE, "expires_at": HOSTILE, "fencing_token": HOSTILE}


class HostileServer(ThreadingHTTPServer):
    """`status` is that of every response, or 200 for successful ones. Each event stream is sent once."""

    status = 200
    streamed = False


class Handler(BaseHTTPRequestHandler):
    server: HostileServer
    SUCCESS: ClassVar[list[tuple[str, str, int, Any]]] = [
        ("POST", r"/locks/[^/]*/lease", 201, LEASE),
        ("PATCH", r"/locks/[^/]*/lease", 200, LEASE),
        ("GET", r"/locks/[^/?]+\?view=full", 200, ROW),
        ("GET", r"/locks/[^/?]+", 200, {"held": True, **LEASE}),
        ("GET", r"/locks/[^/]*/history\?.*|/history\?.*", 200, {"items": [HOLD], "next_cursor": None}),
        ("GET", r"/audit\?.*", 200, {"items": [ENTRY], "next_cursor": None}),
        ("GET", r"/locks\?.*", 200, {"items": [ROW], "next_cursor": None}),
        ("GET", r"/projects\?.*", 200, {"items": [PROJECT], "next_cursor": None}),
        ("GET", r"/projects/[^/]*/service-keys\?.*", 200, {"items": [KEY], "next_cursor": None}),
        ("POST|PATCH", r"/projects(/[^/]*)?", 200, PROJECT),
        ("POST", r"/projects/.*", 201, KEY),
        ("DELETE", r".*", 204, None),
    ]

    def handle_one(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        if self.server.status != 200:
            self.reply(self.server.status, PROBLEM)
        elif self.headers.get("Accept") == "text/event-stream":
            self.stream()
        else:
            status, body = next(
                (status, body)
                for methods, path, status, body in self.SUCCESS
                if self.command in methods.split("|") and re.fullmatch(path, self.path)
            )
            self.reply(status, body)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_one  # noqa: N815

    def reply(self, status: int, body: Any) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("X-Volcano-Request-Id", self.headers["X-Volcano-Request-Id"])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Retry-After", "3600")
        self.end_headers()
        self.wfile.write(content)

    def stream(self) -> None:
        if self.server.streamed:
            self.reply(403, PROBLEM)
            return
        self.server.streamed = True
        self.send_response(200)
        self.send_header("X-Volcano-Request-Id", self.headers["X-Volcano-Request-Id"])
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"retry: 1\nid: 1\n: watching\n\n")
        for kind in ("force_released", "acquired", "a\x1b[2Jb"):
            data = json.dumps(EVENT if kind != "acquired" else {**EVENT, "fencing_token": 7, "expires_at": LATER})
            self.wfile.write(f"id: \x1b[2J\nevent: {kind}\ndata: {data}\n\n".encode())
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[HostileServer]:
    with HostileServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


COMMANDS = [
    ("get", "k"),
    ("get", "k", "--json"),
    ("ls",),
    ("ls", "--json"),
    ("history", "k"),
    ("history", "--prefix", "k", "--json"),
    ("audit", "--admin"),
    ("audit", "--admin", "--json"),
    ("watch", "k"),
    ("watch", "--json"),
    ("acquire", "k"),
    ("renew", "k", "--ttl", "30s"),
    ("release", "k"),
    ("force-release", "k", "--yes"),
    ("force-release", "k", "--fencing-token", "7"),
    ("project", "create", "p"),
    ("project", "list"),
    ("project", "list", "--json"),
    ("project", "show", HOSTILE),
    ("project", "show", "p", "--json"),
    ("project", "set", "p", "--name", "q"),
    ("project", "delete", "p", "--yes"),
    ("key", "create", "p", "k"),
    ("key", "create", "p", "k", "--json"),
    ("key", "list", "p"),
    ("key", "list", "p", "--json"),
    ("key", "revoke", "p", "k", "--yes"),
    ("key", "rotate", "p", "k", "--yes"),
    ("verify", "--only", "public"),
]


@pytest.mark.parametrize(
    "status", [200, 400, 401, 403, 404, 409, 418, 429, pytest.param(503, marks=pytest.mark.real_time)]
)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_sends_a_control_character(
    invoke: Invoke, hostile: HostileServer, command: tuple[str, ...], status: int
) -> None:
    if command[0] == "verify" and status == 200:
        command = ("get", "k")  # `verify` needs a service that keeps some promises
    hostile.status = status
    url = f"http://127.0.0.1:{hostile.server_address[1]}"
    result = invoke(*command, VOLCANO_API_URL=url, VOLCANO_LOCK_TOKEN=TOKEN)
    assert CONTROL.search(result.stdout + result.stderr) is None
    assert not re.search(r"^volcano-locks: forged", result.stdout + result.stderr, re.MULTILINE)
    assert "Traceback" not in result.stderr
    assert status == 200 or result.exit_code != 0
    if "--json" in command and status == 200:
        for line in result.stdout.splitlines():
            assert any(HOSTILE in text for text in _texts(json.loads(line)))


def _texts(value: Any) -> list[str]:
    """All texts in a JSON value."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.real_time
@pytest.mark.parametrize(
    "command",
    [
        ("force-release", "k"),
        ("project", "delete", "p"),
        ("key", "revoke", "p", "k"),
        ("ls",),
        ("watch",),
        ("history", "k"),
        ("audit", "--admin"),
    ],
)
def test_no_control_character_reaches_a_terminal(
    environment: dict[str, str], hostile: HostileServer, command: tuple[str, ...]
) -> None:
    """Questions and the narrower output on a terminal too; the terminal itself ends each line with \\r\\n."""
    url = f"http://127.0.0.1:{hostile.server_address[1]}"
    session = Session({**environment, "VOLCANO_API_URL": url, "NO_COLOR": "1"}, *command)
    try:
        if command[0] not in ("ls", "watch", "history", "audit"):
            session.read_until(b"[y/N]: ")
            session.press(b"n\n")
        session.read_to_end()
        assert CONTROL.search(session.output.decode().replace("\r\n", "\n")) is None
        assert b"\\x1b[2J" in session.output
    finally:
        session.close()


def test_visible_text_stays_as_it_is() -> None:
    text = 'worker-3/4711 "läuft" 🔒 שלום \\x1b'
    assert visible(text) == text
    assert visible("a\nb\x1b[0m\u202e") == "a\\nb\\x1b[0m\\u202e"
    assert visible("b\u200bo\U000e0041b") == "b\\u200bo\\U000e0041b"
    assert visible_lines("a\nb\r") == "a\nb\\r"
