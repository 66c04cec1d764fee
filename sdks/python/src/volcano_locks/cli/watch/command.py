"""`watch`: what happens to locks, as it happens, a line each (CLI-30)."""

import sys
from contextlib import aclosing, suppress
from datetime import UTC, datetime

import click

from volcano_locks.errors import VolcanoError

from .. import output
from ..connection import Connection, service_options
from ..durations import span_text
from ..error_messages import explained
from ..event_loop import run_to_end


@click.command(short_help="Show what happens to locks as it happens.")
@click.argument("key", required=False)
@click.option("--prefix", metavar="P", help="All locks whose keys begin so.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
@service_options
def watch(*, key: str | None, prefix: str | None, as_json: bool, connection: Connection) -> None:
    """Show what happens to the lock KEY, or to all locks, until Ctrl-C.

    A line tells when, what happened, to which lock, the holder (of `waiting`
    and `gave_up`: who waits), the fencing token, and why if that adds to it.
    The connection is made again when it breaks; `reset` says that events may
    be missing.

    \b
    Examples:
      volcano-locks watch daily-rollup
      volcano-locks watch --prefix reports:
      volcano-locks watch --json | jq -c 'select(.event == "expired")'
    """
    if key is not None and prefix is not None:
        raise click.UsageError("KEY and --prefix exclude each other")
    with explained(connection):
        run_to_end(lambda: _watch(connection, key, prefix or "", as_json=as_json))


async def _watch(connection: Connection, key: str | None, prefix: str, *, as_json: bool) -> None:
    from volcano_locks.clock import SystemClock  # noqa: PLC0415 - while interrupts end it quietly
    from volcano_locks.config import TIMEOUT_SECONDS, Config  # noqa: PLC0415
    from volcano_locks.http.transport import HttpTransport  # noqa: PLC0415

    from .event_lines import Lines, json_of, told_of  # noqa: PLC0415
    from .reconnecting_stream import events_path, followed  # noqa: PLC0415

    sender = HttpTransport(Config.resolve(connection.api_url, connection.secret, TIMEOUT_SECONDS, None))
    lines = Lines(on_terminal=sys.stdout.isatty())
    away: bool | None = None
    try:
        async with aclosing(followed(events_path(key, prefix), sender, SystemClock())) as events:
            async for event in events:
                if isinstance(event, VolcanoError):
                    if not away:
                        output.message(f"cut off, connecting again: {event}")
                    away = True
                    continue
                if away is not False:
                    output.message(_watching(connection, key, prefix) if away is None else "connected again")
                    away = False
                if as_json:
                    if event.kind:
                        output.json_line(json_of(event))
                elif (told := told_of(event)) is not None:
                    output.line(lines.line(told))
    finally:
        await sender.aclose()


def _watching(connection: Connection, key: str | None, prefix: str) -> str:
    """That it has begun; and of one lock how it is now, if that can be learnt."""
    if key is None:
        return f"watching the locks whose keys begin with {prefix}" if prefix else "watching all locks"
    how = ""
    with suppress(VolcanoError), connection.client() as client:
        view = client.locks.view(key)
        how = ": free"
        if view.held:
            how = f": held by {view.holder or 'one without a name'}"
            if view.expires_at is not None:
                how += f", expires in {span_text((view.expires_at - datetime.now(UTC)).total_seconds())}"
        how += f", {view.waiters} waiting" if view.waiters else ""
    return f"watching {key}{how}"
