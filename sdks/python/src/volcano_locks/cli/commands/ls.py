"""`ls`: lists locks with their holders and numbers of waiters (CLI-29)."""

import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from .. import output
from ..connection import Connection, service_options
from ..durations import span_text
from ..error_messages import exit_on_client_error
from ..renewals import ago_text, is_not_renewing

if TYPE_CHECKING:
    from volcano_locks.protocol.lock_view import LockView, StateFilter

HEADINGS: Final = ("KEY", "HOLDER", "HELD FOR", "EXPIRES IN", "RENEWED", "WAITERS", "FENCING TOKEN")
NAME_COLUMNS: Final = 2
UNKNOWN: Final = "-"


@click.command(short_help="List locks, holders and numbers of waiters.")
@click.argument("prefix", default="", required=False)
@click.option("--held", is_flag=True, help="Only locks that are held.")
@click.option("--free", is_flag=True, help="Only locks that are free.")
@click.option("--not-renewing", is_flag=True, help="Only held locks that are no longer renewed: stuck?")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def ls(*, prefix: str, held: bool, free: bool, not_renewing: bool, as_json: bool, connection: Connection) -> None:
    """List the locks whose keys begin with PREFIX, or all locks.

    A lock is listed from its first use until it has been free for a day
    or more. The times shown depend on this machine's clock. On a terminal long
    names are truncated; `| cat` and --json show them in full.

    \b
    Examples:
      volcano-locks ls
      volcano-locks ls reports: --held
      volcano-locks ls --not-renewing
      volcano-locks ls --json | jq -r '.items[] | select(.waiters > 0) | .key'
    """
    if free and (held or not_renewing):
        raise click.UsageError(f"use {'--held' if held else '--not-renewing'} or --free, not both")
    state: StateFilter = "held" if held or not_renewing else "free" if free else "all"
    with exit_on_client_error(connection), connection.client() as client:
        views = list(client.locks.list(prefix, state=state))
    now = datetime.now(UTC)
    if not_renewing:
        views = [view for view in views if is_not_renewing(view, now)]
    if as_json:
        output.print_json({"items": [_as_json(view) for view in views]})
    elif views:
        _print(views, now)
    else:
        kind = "" if state == "all" else f"{state} "
        which = f"no {kind}locks" + (f" with keys that begin with {prefix}" if prefix else "")
        output.message(f"{which} whose renewals have stopped" if not_renewing else which)


def _print(views: "list[LockView]", now: datetime) -> None:
    """Prints the table, without the last column if the terminal is too narrow for it."""
    headings: tuple[str, ...] = HEADINGS
    rows = [_row(view, now) for view in views]
    if output.on_terminal():
        needed = output.total_width(output.column_widths((headings, *rows)))
        if needed > shutil.get_terminal_size().columns:
            headings, rows = headings[:-1], [row[:-1] for row in rows]
    output.print_table(headings, rows, names=NAME_COLUMNS)


def _row(view: "LockView", now: datetime) -> tuple[str, ...]:
    held_for, expires_in, renewed = "free", UNKNOWN, UNKNOWN
    if view.held:
        held_for = UNKNOWN if view.acquired_at is None else span_text((now - view.acquired_at).total_seconds())
        if view.expires_at is not None:
            left = (view.expires_at - now).total_seconds()
            expires_in = span_text(left) if left > 0 else "expired"
        if view.renewed_at is not None:
            renewed = ago_text(view.renewed_at, now)
    token = UNKNOWN if view.fencing_token is None else str(view.fencing_token)
    return view.key, view.holder or UNKNOWN, held_for, expires_in, renewed, str(view.waiters), token


def _as_json(view: "LockView") -> dict[str, Any]:
    """The row as in the HTTP API (LIST-2)."""
    return {
        name: output.instant_json(cell) if isinstance(cell, datetime) else cell
        for name, cell in asdict(view).items()
        if name != "queue"  # only the row of one lock has it
    }
