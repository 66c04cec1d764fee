"""CLI-39: the link to the dashboard."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from click.testing import Result

from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import RunningServer, running_server

from ..conftest import Start

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server with the dashboard."""
    with running_server(Settings(store="memory://", port=0, log_level="warning", dashboard=True)) as running:
        yield running


def session_of(server: RunningServer, link: str) -> dict[str, object]:
    """The session that the link begins. It can be used once."""
    begin, _, code = link.partition("#code=")
    assert begin == f"{server.url}/ui"
    with httpx2.Client(base_url=server.url) as browser:
        signed_in = browser.post("/ui/session", json={"code": code})
        assert signed_in.status_code == 200
        assert browser.post("/ui/session", json={"code": code}).status_code == 401
    found: dict[str, object] = signed_in.json()
    return found


def test_the_link_signs_in_with_the_service_key(invoke: Invoke, server: RunningServer) -> None:
    result = invoke("dashboard", "--print")
    assert result.exit_code == 0
    session = session_of(server, result.stdout.strip())
    assert (session["kind"], session["project_id"]) == ("service_key", server.project_id)
    assert server.service_key not in result.output


@pytest.mark.parametrize("options", [("--admin",), ()])
def test_the_link_signs_in_with_the_admin_token(
    invoke: Invoke, server: RunningServer, options: tuple[str, ...]
) -> None:
    """On demand, or because there is no service key."""
    key = {} if options else {"VOLCANO_SERVICE_KEY": ""}
    result = invoke("dashboard", "--json", *options, **key)
    link = json.loads(result.stdout)
    assert set(link) == {"url", "expires_at"}
    assert session_of(server, link["url"])["kind"] == "admin_token"


def test_without_a_browser_the_link_is_printed(invoke: Invoke, server: RunningServer) -> None:
    result = invoke("dashboard", DISPLAY=None, WAYLAND_DISPLAY=None)
    assert session_of(server, result.stdout.strip())["kind"] == "service_key"


def test_a_browser_gets_the_link(
    start: Start, server: RunningServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o700)
    process = start("dashboard", env={**environment, "BROWSER": f"{browser} %s", "DISPLAY": ":9"})
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (0, "")
    assert "opened the dashboard" in stderr
    assert session_of(server, opened.read_text())["kind"] == "service_key"


def test_a_server_without_the_dashboard_has_no_link(invoke: Invoke) -> None:
    with running_server() as other:
        result = invoke("dashboard", VOLCANO_API_URL=other.url, VOLCANO_SERVICE_KEY=other.service_key)
    assert result.exit_code == 64
    assert "not found" in result.stderr


def test_two_secrets_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("dashboard", "--admin", "--service-key-file", str(tmp_path / "key"))
    assert result.exit_code == 64
    assert re.search("not both", result.stderr)
