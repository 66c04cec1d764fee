"""`get` and `force-release`: shows a lock, and frees it from any holder."""

from http import HTTPStatus
from typing import TYPE_CHECKING

import click

from volcano_locks.errors import ServerError

from .. import output
from ..confirm import confirm
from ..connection import Connection, service_options
from ..error_messages import exit_on_client_error

if TYPE_CHECKING:
    from volcano_locks import Client, LockState
    from volcano_locks.protocol.lock_view import LockView


@click.command(short_help="Show whether a lock is held.")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def get(*, key: str, as_json: bool, connection: Connection) -> None:
    """Show whether the lock KEY is held, by which holder and until when. Exits 0
    either way.

    A lock stays held until one second after its lease has expired; only then
    can another worker take it over.

    \b
    Examples:
      volcano-locks get daily-rollup
      volcano-locks get daily-rollup --json
    """
    with exit_on_client_error(connection), connection.client() as client:
        state = _state(client, key)
    holder = getattr(state, "holder", None)
    if not state.held or state.expires_at is None:
        if as_json:
            output.print_json({"held": False})
        else:
            output.print_line(f"{key} is free")
    elif as_json:
        expires_at = output.instant_json(state.expires_at)
        output.print_json(
            {
                "held": True,
                "holder": holder,
                "expires_at": expires_at,
                "fencing_token": state.fencing_token,
            }
        )
    else:
        output.print_held_lock(key, state.expires_at, state.fencing_token, holder)


def _state(client: "Client", key: str) -> "LockView | LockState":
    """The lock with its holder, or without it from a service that has only the public API."""
    try:
        return client.locks.view(key)
    except ServerError as error:
        if error.status != HTTPStatus.OK:
            raise
        return client.locks.get(key)


@click.command(name="force-release", short_help="Free a lock that another client holds.")
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_options
def force_release(*, key: str, yes: bool, connection: Connection) -> None:
    """Free the lock KEY, no matter which client holds it. Asks first.

    The holder notices at its next renewal: within about a minute, or later if
    half of the project's quota is spent.
    Until then two holders may be working: check fencing tokens where you write.

    \b
    Examples:
      volcano-locks force-release daily-rollup
      volcano-locks force-release daily-rollup --yes
    """
    confirm(f"Free {key}? Its holder keeps working until its next renewal.", yes)
    with exit_on_client_error(connection), connection.client() as client:
        client.locks.force_release(key)
    output.message(f"{key} is free")
