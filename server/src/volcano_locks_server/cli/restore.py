"""`volcano-locks restore`: a backup in the place of a store's file, and what that means, said (KEEP-6 to KEEP-8)."""

import time
from pathlib import Path
from typing import Final

import click

from volcano_locks.cli.exit_codes import USAGE, Stop
from volcano_locks.cli.output import json_line, line, message

from .backup import counts_told, sqlite_store, what_it_holds
from .running import explained

HOLD_SECONDS_UNASKED_MAX: Final = 600
HOLD_SECONDS_MAX: Final = 90 * 24 * 3600
GRACE_SECONDS: Final = 1
TTL_SECONDS_USUAL: Final = 30  # a backup of a quiet moment has no lease in it to learn from


@click.command(short_help="Put a backup in the place of a SQLite store.")
@click.option("--from", "file", metavar="FILE", required=True, help="The backup, which stays as it is.")
@click.option(
    "--store", metavar="URL", required=True, help="The store: sqlite:///relative.db or sqlite:////absolute.db"
)
@click.option(
    "--hold-seconds",
    type=click.IntRange(0, HOLD_SECONDS_MAX),
    metavar="NUMBER",
    help="Wait so long first, for leases that the backup does not know. Default: the longest TTL seen, or 30, and 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was restored as JSON.")
def restore(file: str, store: str, hold_seconds: int | None, as_json: bool) -> None:
    """Put a backup in the place of a SQLite store's file.

    Stop the server first, start it afterwards, and run this as the user that
    the server runs as. The file that was there is kept beside the new one.

    A backup knows nothing of what came after it. Fencing tokens go on rising
    all the same. Leases that were granted or renewed since are unknown: this
    command waits --hold-seconds before it puts the backup in place, so that
    those with such a TTL are over before anybody else gets their lock. What
    was revoked or deleted since the backup is back: revoke it again.

    \b
    Examples:
      volcano-locks restore --from locks-monday.backup --store sqlite:///locks.db

    \b
    Exit codes:
      0   restored
      64  an option is wrong, or --hold-seconds has to be given
      69  the backup or the store cannot be used; everything is as it was
    """
    from ..ports.clock import SystemClock  # noqa: PLC0415
    from ..stores.errors import format_instant  # noqa: PLC0415
    from ..stores.sqlite.restore import restore as put_in_place  # noqa: PLC0415

    path = sqlite_store(store)
    with explained():
        hold = _unasked if hold_seconds is None else lambda _longest_ttl_seconds: hold_seconds
        done = put_in_place(Path(file), path, SystemClock(), hold_seconds=hold, sleep=time.sleep, report=message)
    told = what_it_holds(done.contents)
    kept = None if done.kept_aside is None else str(done.kept_aside)
    since = told["written_at"] or "it was made"
    message(f"leases granted or renewed since {since} and keys revoked since are unknown to this backup")
    if kept is not None:
        message(f"the file that was there is {kept}")
    if as_json:
        serves_from = format_instant(done.serves_from_ms).replace("+00:00", "Z")
        json_line(
            {"store": str(path)}
            | told
            | {"kept_aside": kept, "held_seconds": done.held_seconds, "serves_from": serves_from}
        )
    else:
        line(f"restored {counts_told(done.contents)} to {path}")


def _unasked(longest_ttl_seconds: int) -> int:
    """How long to hold where nothing was said. Stop where only a person can know."""
    hold_seconds = max(longest_ttl_seconds, TTL_SECONDS_USUAL) + GRACE_SECONDS
    if hold_seconds > HOLD_SECONDS_UNASKED_MAX:
        raise Stop(
            f"there were leases of up to {longest_ttl_seconds} s: say with --hold-seconds how long to wait for leases "
            "that the backup does not know (0: not at all; then two may hold a lock, and the fencing token decides)",
            USAGE,
        )
    return hold_seconds
