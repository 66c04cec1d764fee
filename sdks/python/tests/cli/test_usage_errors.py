"""CLI-4: a usage error names what the user probably meant, and a message fits the terminal.

In these tests the program is called `app`.
"""

import io
from collections.abc import Callable

import pytest
from click.testing import Result

from volcano_locks.cli import output


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("list", "`app ls`"),
        ("unlock k", "`app release` or `app force-release`"),
        ("status", "`app get` or `app ls`"),
        ("Run k", "`app run`"),
        ("aquire k", "`app acquire`"),
        ("version", "`app --version`"),
        ("project ls", "`app project list`"),
        ("project rm p", "`app project delete`"),
        ("key rm p k", "`app key revoke`"),
    ],
)
def test_an_unknown_command_names_similar_ones(invoke: Callable[..., Result], arguments: str, meant: str) -> None:
    result = invoke(*arguments.split())
    assert result.exit_code == 64
    assert f"Did you mean {meant}?" in result.stderr


def test_a_command_unlike_any_other_has_no_suggestion(invoke: Callable[..., Result]) -> None:
    result = invoke("xyzzy")
    assert result.exit_code == 64
    assert "No such command 'xyzzy'" in result.stderr
    assert "Did you mean" not in result.stderr


@pytest.mark.parametrize("group", [(), ("project",), ("key",)])
def test_an_option_before_its_command_is_explained(invoke: Callable[..., Result], group: tuple[str, ...]) -> None:
    result = invoke(*group, "--api-url", "http://127.0.0.1:1", "list")
    assert result.exit_code == 64
    assert f"follow it: {' '.join(('app', *group))} COMMAND --api-url" in result.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_message_is_broken_between_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-1."""
    text = f"{'word ' * 30}{'x' * 100}\nsecond-line {'word ' * 20}end"
    monkeypatch.setenv("COLUMNS", "80")
    for stream, lines in ((io.StringIO(), text.splitlines()), (Terminal(), [])):
        monkeypatch.setattr("sys.stderr", stream)
        output.message(text, colour="red", lines=True)
        printed = stream.getvalue().splitlines()
        assert " ".join(printed).replace("\x1b[31m", "").replace("\x1b[0m", "").split()[1:] == text.split()
        if lines:
            assert len(printed) == len(lines)
        else:
            assert all(len(line) <= 80 or set(line) == {"x"} for line in printed[1:])
            assert len(printed) > 3
