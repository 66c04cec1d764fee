"""`volcano-locks doctor`: what is wrong with a store, and what to do about it (CLI-25)."""

import click

from volcano_locks.cli.event_loop import run_to_end
from volcano_locks.cli.exit_codes import NOT_DONE, USAGE, Stop
from volcano_locks.cli.output import json_line, line

from .running import explained, store_url


@click.command(short_help="Find what is wrong with a store.")
@click.option("--store", metavar="URL", help="The store; else VOLCANO_LOCKS_STORE, else sqlite:///volcano-locks.db.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def doctor(store: str | None, as_json: bool) -> None:
    """Find what is wrong with a store, and say what to do.

    Run it where serve runs, as the user that serve runs as. Servers may go on
    serving; it changes no lease and no schema. A SQLite file that a server
    has open is looked at from outside only.

    \b
    Examples:
      volcano-locks doctor --store sqlite:////var/lib/volcano-locks/locks.db
      volcano-locks doctor --store postgresql://locks@db/locks --json

    \b
    Exit codes:
      0   all is well
      1   something is not; its line says what to do
      64  the store's URL is wrong
    """
    from ..stores import shown_url  # noqa: PLC0415
    from ..stores.maintenance import check_health  # noqa: PLC0415

    with explained():
        url = store_url(store)
        try:
            findings = run_to_end(lambda: check_health(url))
        except ValueError as error:
            raise Stop(f"--store: {error}", USAGE) from None
    good = all(finding.good for finding in findings)
    if as_json:
        told = [{"about": one.about, "good": one.good, "found": one.found, "advice": one.advice} for one in findings]
        json_line({"store": shown_url(url), "good": good, "findings": told})
    else:
        width = max(len(finding.about) for finding in findings)
        for about, found, advice in findings:
            line(f"{'WRONG' if advice else 'ok':5}  {about:{width}}  {found}{f'; {advice}' if advice else ''}")
    if not good:
        raise Stop(None, NOT_DONE)
