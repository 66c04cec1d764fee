"""`watch`: prints lock events as they happen, one per line (CLI-30)."""

from contextlib import closing, suppress
from datetime import UTC, datetime

import click

from volcano_locks.errors import VolcanoError

from .. import output
from ..connection import Connection, service_options
from ..durations import span_text
from ..error_messages import exit_on_client_error


@click.command(short_help="Show lock events as they happen.")
@click.argument("key", required=False)
@click.option("--prefix", metavar="P", help="All locks whose keys begin with P.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line.")
@service_options
def watch(*, key: str | None, prefix: str | None, as_json: bool, connection: Connection) -> None:
    """Show the events of the lock KEY, or of all locks, until Ctrl-C.

    A line has the time, the event, the key, the holder (for `waiting` and
    `gave_up`: the waiter), the fencing token, and the reason if it adds
    anything. The command reconnects if the connection breaks; `reset` means that
    events may be missing.

    \b
    Examples:
      volcano-locks watch daily-rollup
      volcano-locks watch --prefix reports:
      volcano-locks watch --json | jq -c 'select(.event == "expired")'
    """
    if key is not None and prefix is not None:
        raise click.UsageError("use KEY or --prefix, not both")
    with exit_on_client_error(connection):
        _watch(connection, key, prefix or "", as_json=as_json)


def _watch(connection: Connection, key: str | None, prefix: str, *, as_json: bool) -> None:
    from volcano_locks.clock import SystemClock  # noqa: PLC0415 - imported while an interrupt ends the command quietly
    from volcano_locks.config import TIMEOUT_SECONDS, Config  # noqa: PLC0415
    from volcano_locks.protocol.sse import SseEvent  # noqa: PLC0415
    from volcano_locks.sync.driver import Driver  # noqa: PLC0415

    from .event_lines import EventFormatter, event_json, event_row  # noqa: PLC0415
    from .reconnecting_stream import events_path, reconnecting_events  # noqa: PLC0415

    clock = SystemClock()
    driver = Driver(Config.resolve(connection.api_url, connection.secret, TIMEOUT_SECONDS, None), clock)
    formatter = EventFormatter(on_terminal=output.on_terminal())
    disconnected: bool | None = None
    with closing(driver):
        for event in driver.iterate(reconnecting_events(events_path(key, prefix), clock.now)):
            if not isinstance(event, SseEvent):
                if not disconnected:
                    output.message(f"connection lost, reconnecting: {event}")
                disconnected = True
                continue
            if disconnected is not False:
                output.message(_start_message(connection, key, prefix) if disconnected is None else "reconnected")
                disconnected = False
            if as_json:
                if event.kind:
                    output.print_json(event_json(event))
            elif (row := event_row(event)) is not None:
                output.print_line(formatter.format(row))


def _start_message(connection: Connection, key: str | None, prefix: str) -> str:
    """That the watch has begun; for one lock also its state, if the server returns it."""
    if key is None:
        return f"watching the locks whose keys begin with {prefix}" if prefix else "watching all locks"
    state = ""
    with suppress(VolcanoError), connection.client() as client:
        view = client.locks.view(key)
        state = ": free"
        if view.held:
            state = f": held by {view.holder or 'an unnamed client'}"
            if view.expires_at is not None:
                state += f", expires in {span_text((view.expires_at - datetime.now(UTC)).total_seconds())}"
        state += f", {view.waiters} waiting" if view.waiters else ""
    return f"watching {key}{state}"
