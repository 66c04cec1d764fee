"""`get`: shows a lock."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import click

from volcano_locks.errors import ServerError

from .. import output
from ..connection import Connection, service_options
from ..error_messages import exit_on_client_error
from ..renewals import ago_text, is_not_renewing

if TYPE_CHECKING:
    from volcano_locks import Client, LockState
    from volcano_locks.protocol.lock_view import LockView


QUEUE_SHOWN_MAX = 3


@click.command(short_help="Show who holds a lock, since when, and who is next.")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def get(*, key: str, as_json: bool, connection: Connection) -> None:
    """Show whether the lock KEY is held, by which holder, since and until when, and
    who is next. Exits 0 either way.

    A lock stays held until one second after its lease has expired; only then
    can another worker take it over. A holder that stopped renewing may be stuck.

    \b
    Examples:
      volcano-locks get daily-rollup
      volcano-locks get daily-rollup --json
    """
    with exit_on_client_error(connection), connection.client() as client:
        state = lock_state(client, key)
    holder = getattr(state, "holder", None)
    queue = getattr(state, "queue", ())
    if not state.held or state.expires_at is None:
        if as_json:
            output.print_json({"held": False})
        else:
            output.print_line(f"{key} is free{unknown_text(state)}")
    elif as_json:
        output.print_json(
            {
                "held": True,
                "holder": holder,
                "acquired_at": _instant(state, "acquired_at"),
                "renewed_at": _instant(state, "renewed_at"),
                "expires_at": _instant(state, "expires_at"),
                "fencing_token": state.fencing_token,
                "waiters": getattr(state, "waiters", None),
                "queue": list(queue),
            }
        )
    else:
        waiters = getattr(state, "waiters", 0)
        waiting = waiting_text(waiters, queue) if waiters else None
        output.print_held_lock(key, state.expires_at, state.fencing_token, holder, times=_times(state), waiting=waiting)


def _instant(state: "LockView | LockState", name: str) -> str | None:
    instant = getattr(state, name, None)
    return None if instant is None else output.instant_json(instant)


def _times(state: "LockView | LockState") -> dict[str, str]:
    """Since when the lock is held, and when it was last renewed, as far as the service reports it."""
    acquired_at, renewed_at = getattr(state, "acquired_at", None), getattr(state, "renewed_at", None)
    if acquired_at is None or renewed_at is None:
        return {}
    now = datetime.now(UTC)

    def past(instant: datetime) -> str:
        return f"{output.local_text(instant)}, {ago_text(instant, now)}"

    renewed = "never" if renewed_at == acquired_at else past(renewed_at)
    stuck = "; not renewing" if is_not_renewing(cast("LockView", state), now) else ""
    return {"since": past(acquired_at), "renewed": renewed + stuck}


def waiting_text(waiters: int, queue: "tuple[str | None, ...]") -> str:
    """How many wait, and the first of them that the node of the server knows."""
    if not queue:
        return str(waiters)
    names = ", then ".join(label or "(no label)" for label in queue[:QUEUE_SHOWN_MAX])
    return f"{waiters}; next is {names}{', …' if waiters > QUEUE_SHOWN_MAX else ''}"


def unknown_text(state: "LockView | LockState") -> str:
    """What to add about a free lock that the server has no record of, as of a misspelt key (LEASE-13)."""
    is_known = not hasattr(state, "waiters") or state.fencing_token is not None
    return "" if is_known else "; it was never held, or not in the last 24 hours"


def lock_state(client: "Client", key: str) -> "LockView | LockState":
    """The lock with its holder, or without it from a service that has only the public API."""
    try:
        return client.locks.view(key)
    except ServerError as error:
        if error.status != HTTPStatus.OK:
            raise
        return client.locks.get(key)
