"""`history`: shows who held locks, since when, for how long, and how it ended (CLI-38)."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from .. import output
from ..connection import Connection, service_options
from ..durations import parse_duration, span_text
from ..error_messages import exit_on_client_error
from ..instants import parse_instant

if TYPE_CHECKING:
    from volcano_locks.protocol.hold_entry import HoldEntry

HEADINGS: Final = ("KEY", "HOLDER", "BEGAN", "HELD FOR", "END")
NAME_COLUMNS: Final = 2
UNKNOWN: Final = "-"
KEPT: Final = "the server keeps the history for 7 days unless it is set up otherwise"


@click.command(short_help="Show who held a lock when, and how and why it was lost.")
@click.argument("key", required=False)
@click.option("--prefix", metavar="P", help="All locks whose keys begin with P.")
@click.option("--at", metavar="TIME", help='Only the hold at this time: "03:12", "yesterday 03:12".')
@click.option("--since", metavar="TIME", help="Only holds since a time, or a duration ago: 2d, 90m.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def history(
    *,
    key: str | None,
    prefix: str | None,
    at: str | None,
    since: str | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Show who held the lock KEY, or the locks that begin with P.

    The latest hold comes first. Times are those of this machine's zone. The
    server keeps the history for 7 days unless it is set up otherwise. --json
    also shows service key, address, client and renewals.

    \b
    Examples:
      volcano-locks history billing
      volcano-locks history billing --at "yesterday 03:12"
      volcano-locks history --prefix reports: --since 2d
    """
    if (key is None) == (prefix is None):
        raise click.UsageError("give a KEY or --prefix, not both" if key else "give a KEY, or --prefix P")
    now = datetime.now().astimezone()
    instant = None if at is None else _checked("--at", at, now)
    begin = None if since is None else _since(since, now)
    with exit_on_client_error(connection), connection.client() as client:
        entries = list(client.locks.history(key, prefix=prefix or "", at=instant, since=begin))
    if as_json:
        output.print_json({"items": [_as_json(entry) for entry in entries]})
    elif entries:
        output.print_table(HEADINGS, [_row(entry) for entry in entries], names=NAME_COLUMNS, wrap_last=True)
    else:
        output.message(_nothing(key, prefix, instant, begin))


def _since(text: str, now: datetime) -> datetime:
    try:
        return now - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        return _checked("--since", text, now)


def _checked(option: str, text: str, now: datetime) -> datetime:
    try:
        instant = parse_instant(text, now)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
    if instant > now:
        raise click.UsageError(f"{option}: {output.local_text(instant)} is in the future")
    return instant


def _row(entry: "HoldEntry") -> tuple[str, ...]:
    return (
        entry.key,
        entry.holder or UNKNOWN,
        output.local_text(entry.began_at),
        span_text(entry.held_seconds),
        _end(entry),
    )


def _end(entry: "HoldEntry") -> str:
    """How the hold ended, and why."""
    if entry.ended == "expired":
        renewed = entry.renewed_at if entry.renewals else None
        return "expired" if entry.renewals is None else f"expired: last renewed {_clock(renewed)}"
    if entry.ended == "forced":
        by = f" by {entry.ended_by}" if entry.ended_by else ""
        return f"forced{by}" + (f": {entry.reason}" if entry.reason else "")
    return entry.ended or "held"


def _clock(instant: datetime | None) -> str:
    return "never" if instant is None else f"{instant.astimezone():%H:%M:%S}"


def _nothing(key: str | None, prefix: str | None, at: datetime | None, since: datetime | None) -> str:
    which = key or f"a lock with a key that begins with {prefix}"
    when = f" at {output.local_text(at)}" if at else f" since {output.local_text(since)}" if since else ""
    return f"the history has no hold of {which}{when}; {KEPT}"


def _as_json(entry: "HoldEntry") -> dict[str, Any]:
    """The entry as in the HTTP API (HISTORY-1)."""
    cells = asdict(entry).items()
    return {name: output.instant_json(cell) if isinstance(cell, datetime) else cell for name, cell in cells}
