"""`volcano-locks migrate`: bring a store's schema to this release's version (CLI-24)."""

import click

from volcano_locks.cli.event_loop import run_to_end
from volcano_locks.cli.exit_codes import USAGE, Stop
from volcano_locks.cli.output import json_line, line

from .running import explained, store_url


@click.command(short_help="Bring a store's schema to this release.")
@click.option("--store", metavar="URL", help="The store; else VOLCANO_LOCKS_STORE, else sqlite:///volcano-locks.db.")
@click.option("--json", "as_json", is_flag=True, help="Print the versions as JSON.")
def migrate(store: str | None, as_json: bool) -> None:
    """Bring a store's schema to this release's version, making what is missing.

    serve does the same at its start. This does it beforehand, or as another
    user. On PostgreSQL and etcd, nodes may serve meanwhile.

    \b
    Examples:
      volcano-locks migrate --store sqlite:///locks.db
      volcano-locks migrate --store postgresql://owner@db/locks

    \b
    Exit codes:
      0   the schema is this release's, also where it was already
      64  the store's URL is wrong
      69  the store cannot be used, or a newer release has written it
    """
    from ..stores import shown_url  # noqa: PLC0415
    from ..stores.maintenance import migrate as migrate_store  # noqa: PLC0415

    with explained():
        url = store_url(store)
        try:
            before, after = run_to_end(lambda: migrate_store(url))
        except ValueError as error:
            raise Stop(f"--store: {error}", USAGE) from None
    if as_json:
        json_line({"store": shown_url(url), "before": before, "after": after})
    elif before == after:
        line(f"{shown_url(url)}: schema version {after}, nothing to do")
    else:
        line(f"{shown_url(url)}: schema version {before or 'none'}, now {after}")
