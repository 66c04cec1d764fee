"""`force-release`: frees a lock that another client holds, from the holder that the operator saw (CLI-33, case 66)."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from volcano_locks.errors import ConflictError, NotFoundError, VolcanoError

from .. import exit_codes, output
from ..confirm import confirm, require_terminal
from ..connection import Connection, service_options
from ..durations import span_text
from ..error_messages import exit_on_client_error
from .locks import lock_state, unknown_text

if TYPE_CHECKING:
    from volcano_locks import Client, LockState
    from volcano_locks.protocol.lock_view import LockView

LOCK_CHANGED: Final = "lock_changed"


@click.command(name="force-release", short_help="Free a lock that another client holds.")
@click.argument("key")
@click.option("--fencing-token", type=int, metavar="N", help="Free only the lease with this fencing token, unasked.")
@click.option("--yes", is_flag=True, help="Free the lock from any holder, unasked.")
@click.option("--reason", metavar="TEXT", help="Why: kept in history and audit, and sent to watchers.")
@service_options
def force_release(
    *, key: str, fencing_token: int | None, yes: bool, reason: str | None, connection: Connection
) -> None:
    """Free the lock KEY from the client that holds it. Shows the holder and asks.

    Only the lease that was shown is freed: if the lock changes hands meanwhile,
    nothing is freed, and the exit code is 1. Scripts pass the fencing token that
    they saw (`get --json`), or --yes to free the lock from any holder.

    The holder notices at its next renewal: within about a minute, or later if
    half of the project's quota is spent. The command prints until when it may go
    on working; until then check fencing tokens where you write.

    \b
    Examples:
      volcano-locks force-release daily-rollup --reason "hangs, INC-4711"
      volcano-locks force-release daily-rollup --fencing-token 1796083532084
      volcano-locks force-release daily-rollup --yes
    """
    asks = fencing_token is None and not yes
    if asks:
        require_terminal("--fencing-token N or --yes")
    with exit_on_client_error(connection), connection.client() as client:
        if asks:
            fencing_token = _chosen(client, key)
        seen = _seen(client, key)  # again, because a renewal may have moved the expiry while the question was open
        try:
            client.locks.force_release(key, fencing_token=fencing_token, reason=reason)
        except ConflictError as error:
            if error.code != LOCK_CHANGED:
                raise
            raise exit_codes.Exit(f"{key} was not freed: {error}", exit_codes.NOT_DONE) from None
        except NotFoundError as error:
            if fencing_token is None:
                raise
            raise exit_codes.Exit(_TOO_OLD.format(error), exit_codes.USAGE) from None
    _report(key, seen, fencing_token)


_TOO_OLD: Final = (
    "this server cannot free one lease, because it is older than this command: {}\n"
    "Nothing was freed. Upgrade it, or free the lock from any holder with --yes."
)


def _chosen(client: "Client", key: str) -> int:
    """The fencing token of the lease that was shown and confirmed. Raises Exit if there is none, or on a no."""
    state = lock_state(client, key)
    if not state.held or state.fencing_token is None:
        raise exit_codes.Exit(f"{key} is free already{unknown_text(state)}", 0)
    output.message(_description(key, state))
    confirm(f"Free {key} from this holder?", yes=False)
    return state.fencing_token


def _description(key: str, state: "LockView | LockState") -> str:
    """Who holds the lock, for how long, until when, under which fencing token, and how many wait for it."""
    holder = getattr(state, "holder", None) or "an unknown client"
    acquired_at, waiters = getattr(state, "acquired_at", None), getattr(state, "waiters", None)
    age = "" if acquired_at is None else f", for {span_text((datetime.now(UTC) - acquired_at).total_seconds())}"
    expiry = "" if state.expires_at is None else f", until {output.local_text(state.expires_at)} unless renewed"
    waiting = "" if waiters is None else f"; {waiters} {'waiter' if waiters == 1 else 'waiters'}"
    return f"{key} is held by {holder}{age}{expiry}, with fencing token {state.fencing_token}{waiting}"


def _seen(client: "Client", key: str) -> "LockView | LockState | None":
    """The lock just before it is freed, None if it cannot be read: that must not prevent the release."""
    with suppress(VolcanoError):
        return lock_state(client, key)
    return None


def _report(key: str, seen: "LockView | LockState | None", fencing_token: int | None) -> None:
    """Prints what was freed, and until when its holder may go on working."""
    if seen is None:
        output.message(f"{key} was freed; until when its holder may go on working is not known")
    elif not seen.held or seen.expires_at is None or fencing_token not in (None, seen.fencing_token):
        output.message(f"{key} was free already{unknown_text(seen)}")
    else:
        holder = getattr(seen, "holder", None) or "its holder"
        output.message(
            f"{key} was freed from {holder}, which may go on working until {output.local_text(seen.expires_at)} "
            "if it does not notice earlier, at its next renewal"
        )
