"""`volcano-locks doctor`: finds problems with a store and says how to fix them (CLI-25)."""

from functools import partial
from typing import TYPE_CHECKING

import click

from volcano_locks.cli.confirm import confirm
from volcano_locks.cli.exit_codes import NOT_DONE, USAGE, Exit
from volcano_locks.cli.output import effect_is_done, message, print_json, print_line

from .command_line_act import command_line_act
from .startup import StoreOptions, run_on_store, store_options

if TYPE_CHECKING:
    from ..rules.errors import DamagedRecordError


@click.command(short_help="Find problems with a store.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--repair", "record", metavar="NAME", help="Repair a damaged record that doctor has named.")
@click.option("--yes", is_flag=True, help="Repair without asking.")
def doctor(store: StoreOptions, as_json: bool, record: str | None, yes: bool) -> None:
    """Find problems with a store, and say how to fix them.

    Run it on the server's machine, as the server's user. Servers may run
    meanwhile: it changes no lease and no schema. A SQLite file that a server
    has open is checked without opening it.

    --repair shows a damaged record, asks, and repairs it: a lock becomes free,
    a project gets defaults for what cannot be read, a service key is deleted,
    and the clock is written anew. Stop the lock's holder first, if there may be
    one. A SQLite file must not be in use.

    \b
    Examples:
      volcano-locks doctor --store sqlite:////var/lib/volcano-locks/locks.db
      volcano-locks doctor --store-url-file /etc/locks.url --json
      volcano-locks doctor --repair lock/6f1c2a34-…/nightly-report

    \b
    Exit codes:
      0   no problem found, or the record was repaired
      1   a problem was found; its line says what to do
      64  the store's URL is invalid, or no damaged record has this name
      69  --repair: the store cannot be used
    """
    if record is None:
        _check(store, as_json=as_json)
    else:
        _repair(store, record, as_json=as_json, yes=yes)


def _check(store: StoreOptions, *, as_json: bool) -> None:
    """Prints the findings. Exit 1 if one is a problem."""
    from ..stores.maintenance import check_health  # noqa: PLC0415

    shown_url, findings = run_on_store(store, check_health)
    good = all(finding.good for finding in findings)
    effect_is_done()
    if as_json:
        items = [{"about": one.about, "good": one.good, "found": one.found, "advice": one.advice} for one in findings]
        print_json({"store": shown_url, "good": good, "findings": items})
    else:
        width = max(len(finding.about) for finding in findings)
        for about, found, advice in findings:
            print_line(f"{'WRONG' if advice else 'ok':5}  {about:{width}}  {found}{f'; {advice}' if advice else ''}")
    if not good:
        raise Exit(None, NOT_DONE)


def _repair(store: StoreOptions, record: str, *, as_json: bool, yes: bool) -> None:
    """Shows the damaged record, asks, and repairs it (CLI-31)."""
    from ..stores.maintenance import find_damaged, repair  # noqa: PLC0415

    shown_url, damaged = run_on_store(store, partial(find_damaged, record=record))
    if damaged is None:
        raise Exit(f"no damaged record of {shown_url} has the name {record}", USAGE)
    message(f"{damaged.record} is damaged: {damaged.reason}")
    message(f"stored: {damaged.stored or 'nothing that can be shown'}")
    confirm(_question(damaged), yes)
    run_on_store(store, partial(repair, record=record, by=command_line_act()))
    effect_is_done()
    if as_json:
        print_json({"store": shown_url, "repaired": record})
    else:
        print_line(f"repaired {record}")


def _question(damaged: "DamagedRecordError") -> str:
    kind = damaged.record.partition("/")[0]
    if kind == "lock":
        return "Free this lock? If a client still holds it, two clients may work at once."
    if kind == "clock":
        return "Write the record of the clock anew? Leases may stay held for up to 10 minutes longer."
    if kind == "project":
        return "Write this project anew, with defaults for what cannot be read?"
    return "Delete this record?"
