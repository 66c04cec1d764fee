"""`volcano-locks reset-clock`: the way back after a store was served under a clock that was ahead (CLI-32)."""

from functools import partial
from typing import TYPE_CHECKING

import click

from volcano_locks.cli.confirm import confirm
from volcano_locks.cli.output import effect_is_done, message, print_json, print_line

from .startup import StoreOptions, run_on_store, store_options

if TYPE_CHECKING:
    from ..stores.clock_reset import ClockReset


@click.command("reset-clock", short_help="Serve a store again whose clock was ahead.")
@store_options
@click.option("--yes", is_flag=True, help="Reset without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def reset_clock(store: StoreOptions, yes: bool, as_json: bool) -> None:
    """Set a store's clock back after it was served under a clock that was ahead.

    Time in a store never goes back, so a store that was once served under a
    clock an hour ahead cannot be served for an hour. This command moves all
    instants of its locks back to the time of the machine's clock (PostgreSQL:
    of the database's). Set that clock right first, and stop every server.

    Leases stay with their holders for as long as they had left. Fencing tokens
    keep rising, also for locks that the store has forgotten; from now on they
    are ahead of the clock. Service keys and projects do not change: revoke
    replaced secrets that were kept valid under the wrong clock.

    The command shows what it will do, and asks.

    \b
    Examples:
      volcano-locks reset-clock --store sqlite:////var/lib/volcano-locks/locks.db

    \b
    Exit codes:
      0   reset, or nothing to do
      1   cancelled, nothing was changed
      64  the store's URL is invalid, or there is no terminal to ask on
      69  the store is in use, or cannot be used
    """
    from ..stores.maintenance import plan_reset  # noqa: PLC0415
    from ..stores.maintenance import reset_clock as reset_store_clock  # noqa: PLC0415

    shown_url, plan = run_on_store(store, plan_reset)
    if plan.by_ms:
        _show(shown_url, plan)
        confirm("Set the clock of this store back?", yes)
        run_on_store(store, partial(reset_store_clock, shown=plan))
    effect_is_done()
    if as_json:
        damaged = [error.record for error in plan.damaged]
        print_json({"store": shown_url, "set_back_seconds": plan.by_ms / 1_000, "held": plan.held, "damaged": damaged})
    elif plan.by_ms:
        print_line(f"{shown_url}: the clock was set back by {_duration(plan.by_ms)}; start the servers again")
    else:
        print_line(f"{shown_url}: its newest instant is not ahead of the clock, nothing to do")


def _show(shown_url: str, plan: "ClockReset") -> None:
    from ..stores.errors import format_instant  # noqa: PLC0415
    from ..stores.health_findings import DAMAGED_SHOWN_MAX  # noqa: PLC0415

    message(f"{shown_url} was served until {format_instant(plan.newest_ms)}, by its clock")
    message(f"the clock now reads {format_instant(plan.now_ms)}: check that this is right")
    message(f"all instants of its locks move back by {_duration(plan.by_ms)}, and fencing tokens keep rising")
    if plan.held:
        left = _duration(plan.longest_ms)
        message(f"{plan.held} leases stay held until they are released or have expired, the longest for {left}")
    else:
        message("no lease is held")
    for error in plan.damaged[:DAMAGED_SHOWN_MAX]:
        message(f"{error.record} is damaged and stays as it is: volcano-locks doctor --repair {error.record}")
    if len(plan.damaged) > DAMAGED_SHOWN_MAX:
        message(f"{len(plan.damaged)} records are damaged, {len(plan.damaged) - DAMAGED_SHOWN_MAX} more than shown")
    message("stop every server of this store first")


def _duration(ms: int) -> str:
    """As two units at most, such as `365 d 2 h`."""
    seconds = max(1, round(ms / 1_000))
    sizes = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for index, (unit, size) in enumerate(sizes):
        if seconds >= size:
            text = f"{seconds // size} {unit}"
            rest = seconds % size // sizes[index + 1][1] if unit != "s" else 0
            return f"{text} {rest} {sizes[index + 1][0]}" if rest else text
    return f"{seconds} s"
