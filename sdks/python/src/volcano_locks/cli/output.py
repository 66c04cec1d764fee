"""What people and programs read: data on stdout, messages on stderr (CLI output).

Colour only decorates, only on a terminal, and never when NO_COLOR is set to anything; the words alone
say everything. Tables keep to the narrowest columns that hold their cells, with two spaces between, and on a
terminal to its width.
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
    """One message for a person, on stderr, after the program's name."""
    wanted = colour if colour and sys.stderr.isatty() and not os.environ.get("NO_COLOR") else None
    click.echo(f"{click.style(PROGRAM, fg=wanted) if wanted else PROGRAM}: {text}", err=True)


def line(text: str) -> None:
    """One line of data, on stdout."""
    click.echo(text)


def json_line(value: object) -> None:
    """`value` as one line of JSON, on stdout."""
    click.echo(json.dumps(value, ensure_ascii=False))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> None:
    """Rows under their heads, in columns that line up, on stdout. No rows: the heads alone.

    On a terminal the first columns, which are `names`, are cut so that no row is wider than the screen.
    """
    widths = widths_of((heads, *rows))
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - total_width(widths) + sum(widths[:names])
        widths[:names] = fitting(widths[:names], room)
    for row in (heads, *rows):
        cells = (*map(cut, row[:names], widths), *row[names:])
        line(GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """What each column needs."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def total_width(widths: Sequence[int]) -> int:
    """What columns of these widths need with the gaps between them."""
    return sum(widths) + len(GAP) * (len(widths) - 1)


def fitting(widths: Sequence[int], room: int) -> list[int]:
    """`widths` cut to `room` together, the widest first, but none below NAME_CHARACTERS_MIN."""
    found = list(widths)
    while sum(found) > room and max(found) > NAME_CHARACTERS_MIN:
        found[found.index(max(found))] -= 1
    return found


def fitted(names: Sequence[str], room: int) -> tuple[str, ...]:
    """`names` cut to `room` together."""
    return tuple(map(cut, names, fitting([len(name) for name in names], room)))


def cut(text: str, width: int) -> str:
    """`text`, or as much of it as leaves room for the sign that says that there is more."""
    if len(text) <= width:
        return text
    more = "…" if (sys.stdout.encoding or "").lower().startswith("utf") else "..."
    return text[: width - len(more)] + more


def fields(pairs: Mapping[str, str]) -> None:
    """One thing, a field a line, on stdout."""
    width = max(len(name) for name in pairs)
    for name, value in pairs.items():
        line(f"{name.ljust(width)}  {value}")


def held(key: str, expires_at: datetime, fencing_token: int | None) -> None:
    """A lock that is held, on stdout."""
    line(f"{key} is held")
    fields({"until": f"{instant_text(expires_at)} unless renewed", "fencing token": str(fencing_token)})


def instant_text(instant: datetime) -> str:
    """UTC to the second, with `Z`: people compare it with a clock."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant_json(instant: datetime) -> str:
    """UTC to the millisecond, the way the wire writes it."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
