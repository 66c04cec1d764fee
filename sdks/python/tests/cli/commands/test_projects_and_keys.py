"""CLI-12: projects and service keys, against a real server."""

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
from volcano_locks.cli.output import local_text
from volcano_locks_server.testing import RunningServer

from ..terminal_session import PROGRAM

Invoke = Callable[..., Result]


@pytest.fixture
def project(invoke: Invoke, key: str) -> Iterator[str]:
    """The name of a project for this test alone."""
    assert invoke("project", "create", key).exit_code == 0
    yield key
    invoke("project", "delete", key, "--yes")


def test_project_is_created_shown_changed_and_deleted(invoke: Invoke, project: str) -> None:
    output = json.loads(invoke("project", "show", project, "--json").stdout)
    assert output["name"] == project
    assert output["id"] in invoke("project", "list").stdout
    changed = invoke("project", "set", output["id"], "--requests-per-minute", "0", "--name", f"{project}-2")
    assert "no limit" in changed.stdout
    assert invoke("project", "show", project).exit_code == 64
    assert invoke("project", "delete", f"{project}-2").exit_code == 64
    assert invoke("project", "delete", f"{project}-2", "--yes").exit_code == 0
    names = [item["name"] for item in json.loads(invoke("project", "list", "--json").stdout)["items"]]
    assert f"{project}-2" not in names


def test_secret_is_alone_on_stdout_and_valid_until_revoked(invoke: Invoke, server: RunningServer, project: str) -> None:
    """CLI-12, CLI-2: the secret is output once, with a message on stderr."""
    created = invoke("key", "create", project, "w1", "--permission", "locks.manage", "--expires-in", "90d")
    secret = created.stdout.strip()
    assert secret.startswith("sk-")
    assert secret not in created.stderr
    assert "only this once" in created.stderr
    with Client(server.url, secret) as client:
        assert not client.locks.get("k").held
    listed = invoke("key", "list", project).stdout
    assert secret not in listed
    assert secret[:6] in listed
    assert "locks.manage" in listed
    assert invoke("key", "revoke", project, "w1").exit_code == 64
    assert invoke("key", "revoke", project, "w1", "--yes").exit_code == 0
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=secret).exit_code == 77


def test_a_read_only_key_changes_nothing(invoke: Invoke, server: RunningServer, project: str) -> None:
    """CLI-12, HTTP-15."""
    secret = invoke("key", "create", project, "dashboard", "--permission", "locks.read").stdout.strip()
    assert "locks.read" in invoke("key", "list", project).stdout
    with Client(server.url, secret) as client:
        assert not client.locks.get("k").held
        with pytest.raises(PermissionDeniedError):
            client.locks.force_release("k")


def test_a_missing_permission_is_not_reported_as_a_bad_key(invoke: Invoke, project: str) -> None:
    """CLI-4: both are 77, but only a bad key has the advice to get another key."""
    secret = invoke("key", "create", project, "dashboard", "--permission", "locks.read").stdout.strip()
    refused = invoke("acquire", "k", VOLCANO_SERVICE_KEY=secret)
    assert refused.exit_code == 77
    assert "VOLCANO_SERVICE_KEY lacks the permission" in refused.stderr
    assert "does not accept" not in refused.stderr


def test_a_permission_of_another_service_is_stored(invoke: Invoke, server: RunningServer, project: str) -> None:
    """CLI-12, ADMIN-6: a message says that the permission grants nothing here."""
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


def test_rotation_can_keep_the_old_secret_valid(invoke: Invoke, project: str) -> None:
    old = invoke("key", "create", project, "w1").stdout.strip()
    assert invoke("key", "rotate", project, "w1").exit_code == 64
    before = datetime.now(UTC)
    rotated = invoke("key", "rotate", project, "w1", "--keep-old", "1h", "--json")
    new = json.loads(rotated.stdout)["key_value"]
    assert new != old
    until = re.search(r"the old secret of w1 is valid until (\S+Z)", rotated.stderr)
    assert until is not None
    hour_from_before = before + timedelta(hours=1)
    assert timedelta(seconds=-1) < datetime.fromisoformat(until[1]) - hour_from_before < timedelta(minutes=1)
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=old).exit_code == 0
    listed = json.loads(invoke("key", "list", project, "--json").stdout)["items"][0]
    kept_until = local_text(datetime.fromisoformat(listed["old_secret_good_until"]))
    assert kept_until in invoke("key", "list", project).stdout
    refused = invoke("key", "rotate", project, "w1", "--keep-old", "1h")
    assert (refused.exit_code, refused.stdout) == (64, "")
    assert f"the secret from before the last rotation, kept until {kept_until}, would end now" in refused.stderr
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=old).exit_code == 0
    ended = invoke("key", "rotate", project, "w1", "--yes")
    assert f"the secret from before the last rotation, kept until {kept_until}, ends now" in ended.stderr
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=old).exit_code == 77
    assert "the old secret of w1 is no longer valid" in ended.stderr
    newest = ended.stdout.strip()
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=new).exit_code == 77
    assert invoke("get", "k", VOLCANO_SERVICE_KEY=newest).exit_code == 0


def test_the_old_secret_does_not_outlive_the_key(invoke: Invoke, project: str) -> None:
    invoke("key", "create", project, "w1", "--expires-in", "60s")
    rotated = invoke("key", "rotate", project, "w1", "--keep-old", "1h", "--json")
    assert f"is valid until {json.loads(rotated.stdout)['expires_at'][:19]}Z" in rotated.stderr


def read_all(keyboard: int) -> str:
    """What a program printed on the terminal until it ended."""
    output = b""
    with os.fdopen(keyboard, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while more := terminal.read(4096):
            output += more
    return output.decode()


def test_a_table_fits_its_terminal(environment: dict[str, str], invoke: Invoke) -> None:
    """CLI-1: a name is truncated on a terminal and nowhere else."""
    name = "n" * 200
    made = json.loads(invoke("project", "create", name, "--json").stdout)
    try:
        keyboard, screen = pty.openpty()
        termios.tcsetwinsize(screen, (24, 80))
        without_columns = {name: value for name, value in environment.items() if name != "COLUMNS"}
        with subprocess.Popen([*PROGRAM, "project", "list"], env=without_columns, stdout=screen):
            os.close(screen)
            lines = read_all(keyboard).splitlines()
        assert max(map(len, lines)) <= 80
        assert any("nnn…  " in line and made["id"] in line for line in lines)
        assert name in invoke("project", "list").stdout
        assert name in invoke("project", "list", "--json").stdout
    finally:
        invoke("project", "delete", made["id"], "--yes")


def test_lists_longer_than_a_page_are_complete(invoke: Invoke, server: RunningServer, project: str) -> None:
    """More service keys than one response holds."""
    from volcano_locks.cli.admin_api import admin_client, keys_path
    from volcano_locks.cli.connection import Connection

    with admin_client(Connection(server.url, server.admin_token, "the test")) as admin:
        path = keys_path(admin.project(project)["id"])
        for number in range(101):
            admin.request("POST", path, {"name": f"key-{number}"})
    assert len(json.loads(invoke("key", "list", project, "--json").stdout)["items"]) == 101
    lines = invoke("key", "list", project).stdout.splitlines()
    assert len(lines) == 102
    begins = lines[0].index("BEGINS")
    assert all(line[begins:].startswith("sk-") for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("project", "show", "unknown"), 64),
        (("project", "create", "not a name"), 64),
        (("project", "create", "test"), 64),
        (("project", "set", "test"), 64),
        (("key", "list", "unknown"), 64),
        (("key", "revoke", "test", "unknown", "--yes"), 64),
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
    assert "`serve` prints the path of the token's file" in without.stderr
    wrong = invoke("project", "list", VOLCANO_LOCKS_ADMIN_TOKEN="wrong")
    assert wrong.exit_code == 77
    assert "does not accept the admin token in VOLCANO_LOCKS_ADMIN_TOKEN" in wrong.stderr
    assert "`serve` prints the path of the token's file" in wrong.stderr
    with_key = invoke("project", "list", VOLCANO_LOCKS_ADMIN_TOKEN=server.service_key)
    assert with_key.exit_code == 77
    assert server.service_key not in with_key.output
    assert invoke("project", "list", VOLCANO_API_URL="http://127.0.0.1:9").exit_code == 69


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_stdout_is_74_without_a_traceback(environment: dict[str, str], unbuffered: str) -> None:
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
