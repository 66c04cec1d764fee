"""`volcano-locks restore`: replaces a store's file with a backup and reports the consequences (KEEP-6 to KEEP-8)."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from volcano_locks.cli.exit_codes import USAGE, Exit
from volcano_locks.cli.output import effect_is_done, message, print_json, print_line

from .backup import contents_json, counts_text, sqlite_store
from .startup import exit_on_startup_error

if TYPE_CHECKING:
    from ..stores.sqlite.restore import RestoreResult

HOLD_SECONDS_DEFAULT_MAX: Final = 600
HOLD_SECONDS_MAX: Final = 90 * 24 * 3600
GRACE_SECONDS: Final = 1
TTL_SECONDS_TYPICAL: Final = 30  # for a backup without any lease


@click.command(short_help="Replace a SQLite store with a backup.")
@click.option("--from", "file", metavar="FILE", required=True, help="The backup, which is not changed.")
@click.option(
    "--store", metavar="URL", required=True, help="The store: sqlite:///relative.db or sqlite:////absolute.db"
)
@click.option(
    "--hold-seconds",
    type=click.IntRange(0, HOLD_SECONDS_MAX),
    metavar="NUMBER",
    help="How long to wait first, for leases newer than the backup. Default: the longest TTL, at least 30, plus 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def restore(file: str, store: str, hold_seconds: int | None, as_json: bool) -> None:
    """Replace a SQLite store's file with a backup.

    Stop the server first, start it afterwards, and run this as the server's
    user. The previous file is kept beside the new one.

    The backup lacks leases granted or renewed after it. This command waits
    --hold-seconds before it installs the backup, so that those leases
    have expired before another client can get their locks. Fencing tokens keep
    rising. Keys that the previous file knows as revoked stay revoked. If that
    file is lost, revoke them again.

    \b
    Examples:
      volcano-locks restore --from locks-monday.backup --store sqlite:///locks.db

    \b
    Exit codes:
      0   restored
      64  an option is invalid, or --hold-seconds is required
      69  the backup or the store cannot be used; nothing was changed
    """
    from ..ports.clock import SystemClock  # noqa: PLC0415
    from ..stores.errors import format_instant  # noqa: PLC0415
    from ..stores.sqlite.restore import restore as install_backup  # noqa: PLC0415

    path = sqlite_store(store)
    with exit_on_startup_error():
        hold = _default_hold_seconds if hold_seconds is None else lambda _longest_ttl_seconds: hold_seconds
        done = install_backup(Path(file), path, SystemClock(), hold_seconds=hold, sleep=time.sleep, report=message)
    contents = contents_json(done.contents)
    kept = None if done.kept_aside is None else str(done.kept_aside)
    since = contents["written_at"] or "it was made"
    message(f"this backup does not contain leases granted or renewed since {since}")
    message(_keys_text(done))
    if kept is not None:
        message(f"the previous file is now {kept}")
    effect_is_done()
    if as_json:
        serves_from = format_instant(done.serves_from_ms).replace("+00:00", "Z")
        print_json(
            {"store": str(path)}
            | contents
            | {"kept_aside": kept, "held_seconds": done.held_seconds, "serves_from": serves_from}
            | {"keys_revoked": done.keys_revoked, "secrets_replaced": done.secrets_replaced}
        )
    else:
        print_line(f"restored {counts_text(done.contents)} to {path}")


def _keys_text(done: "RestoreResult") -> str:
    """What became of revoked service keys, for people."""
    if done.keys_revoked is None:
        return "the previous file is lost, so keys that were revoked since then are valid again: revoke them again"
    return (
        f"of the keys in the backup, {done.keys_revoked} stay revoked and {done.secrets_replaced} keep a newer secret; "
        "a deleted project is back, without its keys"
    )


def _default_hold_seconds(longest_ttl_seconds: int) -> int:
    """How long to hold without --hold-seconds. Exit 64 if only the operator can decide."""
    hold_seconds = max(longest_ttl_seconds, TTL_SECONDS_TYPICAL) + GRACE_SECONDS
    if hold_seconds > HOLD_SECONDS_DEFAULT_MAX:
        raise Exit(
            f"there were leases of up to {longest_ttl_seconds} s: pass --hold-seconds, the time to wait for leases "
            "newer than the backup (0: no wait; then two clients may hold a lock, and only the fencing token protects)",
            USAGE,
        )
    return hold_seconds
