"""CLI-12: projects and service keys, against a server that really has them."""

import contextlib
import json
import os
import pty
import re
import subprocess
import termios
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import Result

from volcano_locks import Client, PermissionDeniedError
from volcano_locks_server.testing import RunningServer

from .conftest import PROGRAM

Invoke = Callable[..., Result]


@pytest.fixture
def project(invoke: Invoke, key: str) -> Iterator[str]:
    """A project of this test's own, by name."""
    assert invoke("project", "create", key).exit_code == 0
    yield key
    invoke("project", "delete", key, "--yes")


def test_project_is_created_shown_changed_and_deleted(invoke: Invoke, project: str) -> None:
    shown = json.loads(invoke("project", "show", project, "--json").stdout)
    assert shown["name"] == project
    assert shown["id"] in invoke("project", "list").stdout
    changed = invoke("project", "set", shown["id"], "--requests-per-minute", "0", "--name", f"{project}-2")
    assert "no limit" in changed.stdout
    assert invoke("project", "show", project).exit_code == 64
    assert invoke("project", "delete", f"{project}-2").exit_code == 64
    assert invoke("project", "delete", f"{project}-2", "--yes").exit_code == 0
    names = [item["name"] for item in json.loads(invoke("project", "list", "--json").stdout)["items"]]
    assert f"{project}-2" not in names


def test_secret_alone_is_on_stdout_and_works_until_revoked(invoke: Invoke, server: RunningServer, project: str) -> None:
    """CLI-12, CLI-2: shown once, with a warning beside it."""
    created = invoke("key", "create", project, "w1", "--permission", "locks.manage", "--expires-in", "90d")
    secret = created.stdout.strip()
    assert secret.startswith("sk-")
    assert secret not in created.stderr
    assert "only time" in created.stderr
    with Client(server.url, secret) as client:
        assert not client.locks.get("k").held
    listed = invoke("key", "list", project).stdout
    assert secret not in listed
    assert secret[:6] in listed
    assert "locks.manage" in listed
    assert invoke("key", "revoke", project, "w1").exit_code == 64
    assert invoke("key", "revoke", project, "w1", "--yes").exit_code == 0
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=secret).exit_code == 77


def test_a_key_that_only_looks_changes_nothing(invoke: Invoke, server: RunningServer, project: str) -> None:
    """CLI-12, HTTP-15."""
    secret = invoke("key", "create", project, "dashboard", "--permission", "locks.read").stdout.strip()
    assert "locks.read" in invoke("key", "list", project).stdout
    with Client(server.url, secret) as client:
        assert not client.locks.get("k").held
        with pytest.raises(PermissionDeniedError):
            client.locks.force_release("k")


def test_a_missing_permission_is_not_taken_for_a_bad_key(invoke: Invoke, project: str) -> None:
    """CLI-4: both have the exit code 77; the advice to get another key belongs to the bad one alone."""
    secret = invoke("key", "create", project, "dashboard", "--permission", "locks.read").stdout.strip()
    refused = invoke("acquire", "k", VOLCANO_SERVICE_KEY=secret)
    assert refused.exit_code == 77
    assert "VOLCANO_SERVICE_KEY may not do this" in refused.stderr
    assert "does not accept" not in refused.stderr


def test_a_permission_of_another_service_is_kept(invoke: Invoke, server: RunningServer, project: str) -> None:
    """CLI-12, ADMIN-6: and the operator is told that it grants nothing here."""
    created = invoke("key", "create", project, "f", "--permission", "functions.invoke", "--permission", "locks.read")
    assert "functions.invoke grants nothing here" in created.stderr
    assert "locks.read grants" not in created.stderr
    assert "functions.invoke,locks.read" in invoke("key", "list", project).stdout
    with Client(server.url, created.stdout.strip()) as client:
        assert not client.locks.get("k").held


def test_a_spent_quota_names_the_time_and_the_command_that_raises_it(invoke: Invoke, project: str) -> None:
    """CLI-4: the time to wait comes from the server and is printed once."""
    secret = invoke("key", "create", project, "w1").stdout.strip()
    assert invoke("project", "set", project, "--requests-per-minute", "1").exit_code == 0
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=secret).exit_code == 0
    refused = invoke("get", "k", VOLCANO_SERVICE_KEY=secret)
    assert refused.exit_code == 69
    assert re.findall(r"try again in \d+ s", refused.stderr) == re.findall(r"try again.*", refused.stderr)
    assert "`volcano-locks project set PROJECT --requests-per-minute NUMBER`" in refused.stderr


def test_rotation_can_let_the_old_secret_live_on(invoke: Invoke, project: str) -> None:
    old = invoke("key", "create", project, "w1").stdout.strip()
    assert invoke("key", "rotate", project, "w1").exit_code == 64
    before = datetime.now(UTC)
    rotated = invoke("key", "rotate", project, "w1", "--keep-old", "1h", "--json")
    new = json.loads(rotated.stdout)["key_value"]
    assert new != old
    until = re.search(r"the old secret of w1 works until (\S+Z)", rotated.stderr)
    assert until is not None
    hour_from_before = before + timedelta(hours=1)
    assert timedelta(seconds=-1) < datetime.fromisoformat(until[1]) - hour_from_before < timedelta(minutes=1)
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=old).exit_code == 0
    ended = invoke("key", "rotate", project, "w1", "--yes")
    assert "the old secret of w1 works no longer" in ended.stderr
    newest = ended.stdout.strip()
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=new).exit_code == 77
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=newest).exit_code == 0


def test_old_secret_of_a_key_that_expires_is_not_promised_to_outlive_it(invoke: Invoke, project: str) -> None:
    invoke("key", "create", project, "w1", "--expires-in", "60s")
    rotated = invoke("key", "rotate", project, "w1", "--keep-old", "1h", "--json")
    assert f"works until {json.loads(rotated.stdout)['expires_at'][:19]}Z" in rotated.stderr


def shown_on(keyboard: int) -> str:
    """What a program showed on the terminal until it ended."""
    shown = b""
    with os.fdopen(keyboard, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while more := terminal.read(4096):
            shown += more
    return shown.decode()


def test_table_fits_the_terminal_it_is_shown_on(environment: dict[str, str], invoke: Invoke) -> None:
    """CLI-1: a name is cut there and nowhere else."""
    name = "n" * 200
    made = json.loads(invoke("project", "create", name, "--json").stdout)
    try:
        keyboard, screen = pty.openpty()
        termios.tcsetwinsize(screen, (24, 80))
        without_columns = {name: value for name, value in environment.items() if name != "COLUMNS"}
        with subprocess.Popen([*PROGRAM, "project", "list"], env=without_columns, stdout=screen):
            os.close(screen)
            lines = shown_on(keyboard).splitlines()
        assert max(map(len, lines)) <= 80
        assert any("nnn…  " in line and made["id"] in line for line in lines)
        assert name in invoke("project", "list").stdout
        assert name in invoke("project", "list", "--json").stdout
    finally:
        invoke("project", "delete", made["id"], "--yes")


def test_lists_longer_than_a_page_are_whole(invoke: Invoke, server: RunningServer, project: str) -> None:
    """More service keys than one answer holds."""
    from volcano_locks.cli.admin_api import admin_of, keys_path
    from volcano_locks.cli.connection import Connection

    with admin_of(Connection(server.url, server.admin_token, "the test")) as admin:
        path = keys_path(admin.project(project)["id"])
        for number in range(101):
            admin.ask("POST", path, {"name": f"key-{number}"})
    assert len(json.loads(invoke("key", "list", project, "--json").stdout)["items"]) == 101
    lines = invoke("key", "list", project).stdout.splitlines()
    assert len(lines) == 102
    begins = lines[0].index("BEGINS")
    assert all(line[begins:].startswith("sk-") for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("project", "show", "nobody"), 64),
        (("project", "create", "not a name"), 64),
        (("project", "create", "test"), 64),
        (("project", "set", "test"), 64),
        (("key", "list", "nobody"), 64),
        (("key", "revoke", "test", "nobody", "--yes"), 64),
        (("key", "create", "test", "k", "--permission", "locks.all"), 64),
        (("key", "create", "test", "k", "--permission", ""), 64),
    ],
)
def test_mistakes_are_64(invoke: Invoke, arguments: tuple[str, ...], code: int) -> None:
    """CLI-4."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr


def test_admin_credentials_are_77(invoke: Invoke, server: RunningServer) -> None:
    """CLI-4, CLI-2."""
    without = invoke("project", "list", VOLCANO_LOCKS_ADMIN_TOKEN=None)
    assert without.exit_code == 77
    assert "`serve` says at its start where the token is kept" in without.stderr
    wrong = invoke("project", "list", VOLCANO_LOCKS_ADMIN_TOKEN="wrong")
    assert wrong.exit_code == 77
    assert "does not accept the admin token in VOLCANO_LOCKS_ADMIN_TOKEN" in wrong.stderr
    assert "`serve` says at its start where the token is kept" in wrong.stderr
    with_key = invoke("project", "list", VOLCANO_LOCKS_ADMIN_TOKEN=server.service_key)
    assert with_key.exit_code == 77
    assert server.service_key not in with_key.output
    assert invoke("project", "list", VOLCANO_API_URL="http://127.0.0.1:9").exit_code == 69


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_goes_away_is_no_traceback(environment: dict[str, str], unbuffered: str) -> None:
    """CLI-1, CLI-4: `volcano-locks … | head -0`."""
    process = subprocess.Popen(
        [*PROGRAM, "project", "list"],
        env=environment | {"PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 74
