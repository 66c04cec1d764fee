"""What is said of a lock that another holds: the same words wherever a command meets one."""

from contextlib import suppress
from typing import TYPE_CHECKING

from volcano_locks.errors import VolcanoError

from .output import instant_text

if TYPE_CHECKING:
    from volcano_locks import Client


def held_text(client: "Client", key: str, *, undone: str, waited: bool) -> str:
    """By whom and until when `key` is held, if that can be learnt; `undone` is what was not done: "nothing was run"."""
    holder, until = "another", ""
    with suppress(VolcanoError):
        view = client.locks.view(key)
        if view.held and view.expires_at is not None:
            holder, until = view.holder or holder, f" until {instant_text(view.expires_at)} unless renewed"
    advice = "" if waited else " (-w DURATION waits for it)"
    return f"{key} is held by {holder}{until}; {undone}{advice}"
