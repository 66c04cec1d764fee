"""Output for people and programs: data on stdout, messages on stderr (CLI-1).

Colour is decoration: only on a terminal, and never if NO_COLOR is set. A table's columns are as narrow as their cells
allow, two spaces apart, and on a terminal the table fits its width.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import click

PROGRAM = "volcano-locks"
GAP = "  "
NAME_CHARACTERS_MIN = 8


def message(text: str, *, colour: str | None = None) -> None:
    """Prints one message on stderr, after the program's name. On a terminal its lines are broken between words."""
    shown = f"{PROGRAM}: {text}"
    if sys.stderr.isatty():
        shown = _wrapped(shown, shutil.get_terminal_size().columns)
        if colour and not os.environ.get("NO_COLOR"):
            shown = click.style(PROGRAM, fg=colour) + shown.removeprefix(PROGRAM)
    click.echo(shown, err=True)


def _wrapped(text: str, width: int) -> str:
    from textwrap import fill  # noqa: PLC0415 (needed only on a terminal)

    return "\n".join(fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines())


def print_line(text: str) -> None:
    """Prints one line of data on stdout."""
    click.echo(text)


def print_json(value: object) -> None:
    """Prints `value` on stdout as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> None:
    """Prints rows under their headings in aligned columns on stdout; with no rows, the headings alone.

    On a terminal the first `names` columns are truncated so that no row is wider than the screen.
    """
    widths = column_widths((headings, *rows))
    if sys.stdout.isatty():
        available = shutil.get_terminal_size().columns - total_width(widths) + sum(widths[:names])
        widths[:names] = fit_widths(widths[:names], available)
    for row in (headings, *rows):
        cells = (*map(truncate, row[:names], widths), *row[names:])
        print_line(GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


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


def truncate(text: str, width: int) -> str:
    """`text`, shortened to `width` with an ellipsis if it is longer."""
    if len(text) <= width:
        return text
    ellipsis = "…" if (sys.stdout.encoding or "").lower().startswith("utf") else "..."
    return text[: width - len(ellipsis)] + ellipsis


def print_fields(pairs: Mapping[str, str]) -> None:
    """Prints one object on stdout, a field per line."""
    width = max(len(name) for name in pairs)
    for name, value in pairs.items():
        print_line(f"{name.ljust(width)}  {value}")


def print_held_lock(key: str, expires_at: datetime, fencing_token: int | None, holder: str | None = None) -> None:
    """Prints a held lock on stdout."""
    print_line(f"{key} is held by {holder}" if holder else f"{key} is held")
    print_fields({"until": f"{instant_text(expires_at)} unless renewed", "fencing token": str(fencing_token)})


def instant_text(instant: datetime) -> str:
    """UTC to the second, with `Z`, as people compare it with a clock."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant_json(instant: datetime) -> str:
    """UTC to the millisecond, as in the HTTP API."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
