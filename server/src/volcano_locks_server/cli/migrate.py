"""`volcano-locks migrate`: upgrades a store's schema to this release's version (CLI-24)."""

import click

from volcano_locks.cli.output import effect_is_done, print_json, print_line

from .startup import StoreOptions, run_on_store, store_options


@click.command(short_help="Upgrade a store's schema to this release.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print the versions as JSON.")
def migrate(store: StoreOptions, as_json: bool) -> None:
    """Upgrade a store's schema to this release's version; create it if missing.

    serve does the same when it starts. Use this to do it earlier, or as another
    user. On PostgreSQL and etcd, nodes may serve meanwhile.

    \b
    Examples:
      volcano-locks migrate --store sqlite:///locks.db
      volcano-locks migrate --store 'postgresql://owner@db/locks?sslmode=verify-full'

    \b
    Exit codes:
      0   the schema has this release's version (or had it already)
      64  the store's URL is invalid
      69  the store cannot be used, or a newer release wrote it
    """
    from ..stores.maintenance import migrate as migrate_store  # noqa: PLC0415

    shown_url, (before, after) = run_on_store(store, migrate_store)
    effect_is_done()
    if as_json:
        print_json({"store": shown_url, "before": before, "after": after})
    elif before == after:
        print_line(f"{shown_url}: schema version {after}, nothing to do")
    else:
        print_line(f"{shown_url}: schema version {before or 'none'}, now {after}")
