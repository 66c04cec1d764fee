"""CLI-16: commands come from two distributions, and nothing is imported before it is needed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

import volcano_locks
from volcano_locks.cli import app

SOURCE = Path(volcano_locks.__file__).parents[1]


def python(
    code: str, *arguments: str, path: Path | None = None, flags: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder) for folder in (SOURCE, path) if folder)}
    return subprocess.run(
        [sys.executable, *flags, "-c", code, *arguments], env=env, capture_output=True, text=True, check=False
    )


MAIN = "from volcano_locks.cli import main; main()"


def test_without_click_the_message_says_what_to_install() -> None:
    found = python(f"import sys; sys.modules['click'] = None; {MAIN}", "run", "k", "--", "true")
    assert found.returncode == 64
    assert found.stderr.splitlines() == [
        "volcano-locks: the command line needs click; install it with: pip install 'volcano-locks[cli]'"
    ]


def test_without_the_server_its_commands_say_what_to_install(tmp_path: Path) -> None:
    """CLI-16. `-S` hides all installed packages except click."""
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    for command in ("serve", "dev"):
        found = python(MAIN, command, path=tmp_path, flags=("-S",))
        assert found.returncode == 64
        assert "pip install volcano-locks-server" in found.stderr
        assert len(found.stderr.splitlines()) == 1
    assert "\n  serve " not in python(MAIN, "--help", path=tmp_path, flags=("-S",)).stdout


def test_with_the_server_an_unknown_server_command_is_no_such_command(
    invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is installed, but another release: advice to install the server would not help."""
    monkeypatch.setattr(app, "SERVER_COMMANDS", app.SERVER_COMMANDS | {"later"})
    found = invoke("later")
    assert found.exit_code == 64
    assert "No such command 'later'" in found.stderr


def test_an_entry_point_adds_a_command_and_is_loaded_only_when_used(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text("print('loaded')\nimport click\n@click.command()\ndef hello(): print('hello')\n")
    metadata = tmp_path / "more-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[volcano_locks.commands]\nhello = more:hello\nbroken = more:nothing\n")
    assert python(MAIN, "hello", path=tmp_path).stdout.split() == ["loaded", "hello"]
    assert "loaded" not in python(MAIN, "get", "--help", path=tmp_path).stdout
    everything = python(MAIN, "--help", path=tmp_path)
    assert "hello" in everything.stdout
    assert everything.returncode == 0
    broken = python(MAIN, "broken", path=tmp_path)
    assert broken.returncode == 70
    assert "`broken` cannot be loaded" in broken.stderr


def test_help_lists_the_commands_of_both_distributions(invoke: Callable[..., Result]) -> None:
    found = invoke("--help")
    assert found.exit_code == 0
    for command in ("run", "acquire", "renew", "release", "get", "force-release", "project", "key", "dev", "serve"):
        assert f"\n  {command} " in found.stdout


def test_run_does_not_import_what_it_does_not_need() -> None:
    """Neither the HTTP parser, TLS, asyncio nor the metadata of installed packages is loaded before it is needed."""
    code = (
        "import sys; import volcano_locks.cli.app, volcano_locks.cli.run;"
        "print(*{'h11', 'ssl', 'asyncio', 'importlib.metadata', 'volcano_locks.cli.admin_api'} & set(sys.modules))"
    )
    assert python(code).stdout.split() == []
