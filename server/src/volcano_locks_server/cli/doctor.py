"""`volcano-locks doctor`: finds problems with a store and says how to fix them (CLI-25)."""

import click

from volcano_locks.cli.exit_codes import NOT_DONE, Exit
from volcano_locks.cli.output import print_json, print_line

from .startup import run_on_store, store_option


@click.command(short_help="Find problems with a store.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(store: str | None, as_json: bool) -> None:
    """Find problems with a store, and say how to fix them.

    Run it on the server's machine, as the server's user. Servers may run
    meanwhile: it changes no lease and no schema. A SQLite file that a server
    has open is checked without opening it.

    \b
    Examples:
      volcano-locks doctor --store sqlite:////var/lib/volcano-locks/locks.db
      volcano-locks doctor --store postgresql://locks@db/locks --json

    \b
    Exit codes:
      0   no problem found
      1   a problem was found; its line says what to do
      64  the store's URL is invalid
    """
    from ..stores.maintenance import check_health  # noqa: PLC0415

    shown_url, findings = run_on_store(store, check_health)
    good = all(finding.good for finding in findings)
    if as_json:
        items = [{"about": one.about, "good": one.good, "found": one.found, "advice": one.advice} for one in findings]
        print_json({"store": shown_url, "good": good, "findings": items})
    else:
        width = max(len(finding.about) for finding in findings)
        for about, found, advice in findings:
            print_line(f"{'WRONG' if advice else 'ok':5}  {about:{width}}  {found}{f'; {advice}' if advice else ''}")
    if not good:
        raise Exit(None, NOT_DONE)
