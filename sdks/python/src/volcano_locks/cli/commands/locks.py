"""`get` and `force-release`: looking at a lock, and freeing it whoever holds it."""

import click

from .. import output
from ..confirm import ask
from ..connection import Connection, service_options
from ..error_messages import explained


@click.command(short_help="Show whether a lock is held.")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def get(*, key: str, as_json: bool, connection: Connection) -> None:
    """Show whether the lock KEY is held, and until when. Exit code 0 either way.

    A lock is held until one second after its lease has expired: only then may
    another worker take it over. Who holds it is told by `ls KEY`.

    \b
    Examples:
      volcano-locks get daily-rollup
      volcano-locks get daily-rollup --json
    """
    with explained(connection), connection.client() as client:
        state = client.locks.get(key)
    if not state.held or state.expires_at is None:
        if as_json:
            output.json_line({"held": False})
        else:
            output.line(f"{key} is free")
    elif as_json:
        expires_at = output.instant_json(state.expires_at)
        output.json_line({"held": True, "expires_at": expires_at, "fencing_token": state.fencing_token})
    else:
        output.held(key, state.expires_at, state.fencing_token)


@click.command(name="force-release", short_help="Free a lock, whoever holds it.")
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask.")
@service_options
def force_release(*, key: str, yes: bool, connection: Connection) -> None:
    """Free the lock KEY, whoever holds it. Asks first.

    The holder learns of it at its next renewal, up to a third of its TTL from
    now; until then two may be at work. Check fencing tokens where you write.

    \b
    Examples:
      volcano-locks force-release daily-rollup
      volcano-locks force-release daily-rollup --yes
    """
    ask(f"Free {key}? Its holder goes on working until its next renewal.", yes)
    with explained(connection), connection.client() as client:
        client.locks.force_release(key)
    output.message(f"{key} is free")
