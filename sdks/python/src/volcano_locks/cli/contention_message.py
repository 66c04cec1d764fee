"""The message about a lock that another client holds, the same for every command."""

from contextlib import suppress
from typing import TYPE_CHECKING

from volcano_locks.errors import VolcanoError

from .output import instant_text

if TYPE_CHECKING:
    from volcano_locks import Client


def lock_held_message(client: "Client", key: str, consequence: str, *, waited: bool) -> str:
    """Who holds `key` and until when, if the server says so; `consequence` is such as "nothing was run"."""
    holder, until = "another client", ""
    with suppress(VolcanoError):
        view = client.locks.view(key)
        if view.held and view.expires_at is not None:
            holder, until = view.holder or holder, f" until {instant_text(view.expires_at)} unless renewed"
    advice = "" if waited else "\n-w DURATION waits for the lock, --wait without a limit."
    return f"{key} is held by {holder}{until}; {consequence}{advice}"
