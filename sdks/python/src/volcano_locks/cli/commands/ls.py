"""`ls`: which locks there are, who holds them, and how many wait (CLI-29)."""

import shutil
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from .. import output
from ..connection import Connection, service_options
from ..durations import span_text
from ..error_messages import explained

if TYPE_CHECKING:
    from volcano_locks.protocol.lock_view import LockView, StateFilter

HEADS: Final = ("KEY", "HOLDER", "HELD FOR", "EXPIRES IN", "WAITERS", "FENCING TOKEN")
NAMES: Final = 2
UNKNOWN: Final = "-"


@click.command(short_help="List locks, their holders and who waits.")
@click.argument("prefix", default="", required=False)
@click.option("--held", is_flag=True, help="Only locks that are held.")
@click.option("--free", is_flag=True, help="Only locks that are free.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def ls(*, prefix: str, held: bool, free: bool, as_json: bool, connection: Connection) -> None:
    """List the locks whose keys begin with PREFIX; all without it.

    A lock is listed from its first use on, and a free one at least a day
    longer. Times are by this machine's clock, against the server's dates. On a
    terminal long names are cut; `| cat` and --json show them whole.

    \b
    Examples:
      volcano-locks ls
      volcano-locks ls reports: --held
      volcano-locks ls --json | jq -r '.items[] | select(.waiters > 0) | .key'
    """
    if held and free:
        raise click.UsageError("--held and --free exclude each other")
    state: StateFilter = "held" if held else "free" if free else "all"
    with explained(connection), connection.client() as client:
        views = list(client.locks.list(prefix, state=state))
    if as_json:
        output.json_line({"items": [_wire(view) for view in views]})
    elif views:
        _print(views)
    else:
        kind = "" if state == "all" else f"{state} "
        output.message(f"there is no {kind}lock" + (f" whose key begins with {prefix}" if prefix else ""))


def _print(views: "list[LockView]") -> None:
    """As a table; on a terminal that has no room for it without the last column."""
    now = datetime.now(UTC)
    heads: tuple[str, ...] = HEADS
    rows = [_row(view, now) for view in views]
    if sys.stdout.isatty():
        needed = output.total_width(output.widths_of((heads, *rows)))
        if needed > shutil.get_terminal_size().columns:
            heads, rows = heads[:-1], [row[:-1] for row in rows]
    output.table(heads, rows, names=NAMES)


def _row(view: "LockView", now: datetime) -> tuple[str, ...]:
    held_for, expires_in = "free", UNKNOWN
    if view.held:
        held_for = UNKNOWN if view.acquired_at is None else span_text((now - view.acquired_at).total_seconds())
        if view.expires_at is not None:
            left = (view.expires_at - now).total_seconds()
            expires_in = span_text(left) if left > 0 else "expired"
    token = UNKNOWN if view.fencing_token is None else str(view.fencing_token)
    return view.key, view.holder or UNKNOWN, held_for, expires_in, str(view.waiters), token


def _wire(view: "LockView") -> dict[str, Any]:
    """The row as the service writes it (LIST-2)."""
    return {
        "key": view.key,
        "held": view.held,
        "holder": view.holder,
        "acquired_at": _instant(view.acquired_at),
        "renewed_at": _instant(view.renewed_at),
        "expires_at": _instant(view.expires_at),
        "ttl_seconds": view.ttl_seconds,
        "fencing_token": view.fencing_token,
        "waiters": view.waiters,
    }


def _instant(at: datetime | None) -> str | None:
    return None if at is None else output.instant_json(at)
