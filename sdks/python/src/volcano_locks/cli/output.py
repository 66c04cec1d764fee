"""Output for people and programs: data on stdout, messages on stderr (CLI-1).

Text of a server never controls the terminal or hides a part of itself (CLI-35): everything printed here passes through
`visible`, which shows control and format characters instead of sending them.

Colour is decoration: only on a terminal, and never if NO_COLOR is set. A table's columns are as narrow as their cells
allow, two spaces apart, and on a terminal the table fits its width.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import click

from ..protocol.arguments import is_invisible
from . import exit_codes
from .streams import StdoutError

PROGRAM = "volcano-locks"
GAP = "  "
NAME_CHARACTERS_MIN = 8
WRAPPED_CHARACTERS_MIN = 20
_EFFECT_IS_DONE = "volcano_locks.effect_is_done"


class OutputFailedError(exit_codes.Exit):
    """stdout is full, or closed (`error` is None), and the output was what the command is for (CLI-34)."""

    def __init__(self, error: OSError | None) -> None:
        quiet = isinstance(error, BrokenPipeError)  # `… | head`
        reason = "it is closed" if error is None else error.strerror
        super().__init__(None if quiet else f"cannot write to stdout: {reason}", exit_codes.INPUT_OUTPUT)


def visible(text: str) -> str:
    """`text` on one line, with escapes such as `\\x1b` in place of control, format and line break characters."""
    return _escaped(text, ascii)


def _escaped(text: str, quoted: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(quoted(one)[1:-1] if is_invisible(one) else one for one in text)


def visible_lines(text: str) -> str:
    """`visible` for a text of several lines."""
    return "\n".join(map(visible, text.split("\n")))


def effect_is_done() -> None:
    """From here on, a closed or full stdout does not fail this command: what it is for has been done (CLI-34)."""
    click.get_current_context().meta[_EFFECT_IS_DONE] = True


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def message(text: str, *, colour: str | None = None, lines: bool = False) -> None:
    """Prints one message on stderr, after the program's name. On a terminal its lines are broken between words.

    Only with `lines` it may have several, so that text of a server in it cannot look like another message.
    """
    shown = f"{PROGRAM}: {visible_lines(text) if lines else visible(text)}"
    if sys.stderr.isatty():
        shown = _wrapped(shown, shutil.get_terminal_size().columns)
        if colour and not os.environ.get("NO_COLOR"):
            shown = click.style(PROGRAM, fg=colour) + shown.removeprefix(PROGRAM)
    click.echo(shown, err=True)


def _wrapped(text: str, width: int) -> str:
    from textwrap import fill  # noqa: PLC0415 (needed only on a terminal)

    return "\n".join(fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines())


def print_line(text: str) -> None:
    """Prints one line of data on stdout. Raises OutputFailedError."""
    print_text(visible(text))


def print_text(text: str) -> None:
    """Prints lines of our own on stdout. Raises OutputFailedError."""
    failure: OSError | None = None
    try:
        if sys.stdout is not None:
            click.echo(text)
            return
    except StdoutError as error:
        discard_stdout()
        failure = error.cause
    context = click.get_current_context(silent=True)
    if context is None or _EFFECT_IS_DONE not in context.meta:
        raise OutputFailedError(failure)


def discard_stdout() -> None:
    """Redirects a stdout that cannot be written, so that the flush at the end of the process does not fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    """Prints `value` on stdout as one line of JSON, with escapes as in `visible`. Raises OutputFailedError."""
    print_text(_escaped(json.dumps(value, ensure_ascii=False), json.dumps))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1, *, wrap_last: bool = False
) -> None:
    """Prints rows under their headings in aligned columns on stdout; with no rows, the headings alone.

    On a terminal the first `names` columns are truncated so that no row is wider than the screen. With `wrap_last` the
    text of the last column is broken into lines first.
    """
    rows = [tuple(map(visible, row)) for row in rows]
    widths = column_widths((headings, *rows))
    if on_terminal():
        available = shutil.get_terminal_size().columns - total_width(widths)
        if wrap_last and available < 0:
            narrow = max(widths[-1] + available, min(widths[-1], WRAPPED_CHARACTERS_MIN))
            available += widths[-1] - narrow
            widths[-1] = narrow
        widths[:names] = fit_widths(widths[:names], available + sum(widths[:names]))
    for row in (headings, *rows):
        cells = (*map(truncate, row[:names], widths), *row[names:])
        text = GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        if wrap_last and len(row[-1]) > widths[-1]:
            indent = " " * (total_width(widths) - widths[-1])
            text = f"{text[: len(indent)]}{_wrapped(row[-1], widths[-1])}".replace("\n", f"\n{indent}")
        print_text(text)


def fits_terminal(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table of these rows fits, which it always does if stdout is not a terminal."""
    return not on_terminal() or total_width(column_widths(rows)) <= shutil.get_terminal_size().columns


def print_indented(text: str) -> None:
    """Prints one line of data below the line it belongs to, broken between words on a terminal."""
    indent = " " * 4
    shown = visible(text)
    width = shutil.get_terminal_size().columns - len(indent)
    broken = _wrapped(shown, width).replace("\n", f"\n{indent}") if on_terminal() else shown
    print_text(f"{indent}{broken}")


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width that each column needs."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def total_width(widths: Sequence[int]) -> int:
    """The width of a row with these columns and the gaps between them."""
    return sum(widths) + len(GAP) * (len(widths) - 1)


def fit_widths(widths: Sequence[int], available: int) -> list[int]:
    """`widths` reduced to `available` in total, the widest first, none below NAME_CHARACTERS_MIN."""
    fitted = list(widths)
    while sum(fitted) > available and max(fitted) > NAME_CHARACTERS_MIN:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def fit_names(names: Sequence[str], available: int) -> tuple[str, ...]:
    """`names` truncated to `available` characters in total."""
    return tuple(map(truncate, names, fit_widths([len(name) for name in names], available)))


def is_unicode() -> bool:
    """Whether stdout can show every character."""
    return sys.stdout is not None and (sys.stdout.encoding or "").lower().startswith("utf")


def truncate(text: str, width: int) -> str:
    """`text`, shortened to `width` with an ellipsis if it is longer."""
    if len(text) <= width:
        return text
    ellipsis = "…" if is_unicode() else "..."
    return text[: width - len(ellipsis)] + ellipsis


def print_fields(pairs: Mapping[str, str]) -> None:
    """Prints one object on stdout, a field per line."""
    width = max(len(name) for name in pairs)
    for name, value in pairs.items():
        print_line(f"{name.ljust(width)}  {value}")


def print_held_lock(
    key: str,
    expires_at: datetime,
    fencing_token: int | None,
    holder: str | None = None,
    *,
    times: Mapping[str, str] | None = None,
    waiting: str | None = None,
) -> None:
    """Prints a held lock on stdout; `times` are fields of the past, shown before the expiry."""
    print_line(f"{key} is held by {holder}" if holder else f"{key} is held")
    until = f"{local_text(expires_at)} unless renewed"
    fields = {**(times or {}), "until": until, "fencing token": str(fencing_token)}
    print_fields(fields if waiting is None else {**fields, "waiting": waiting})


def instant_text(instant: datetime) -> str:
    """UTC to the second, with `Z`, as people compare it with a clock."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def local_text(instant: datetime) -> str:
    """The time of this machine's zone to the second, with the date and the zone."""
    local = instant.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S} {local:%Z}".rstrip()


def instant_json(instant: datetime) -> str:
    """UTC to the millisecond, as in the HTTP API."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
