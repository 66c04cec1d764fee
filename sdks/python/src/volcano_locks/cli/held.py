"""What is said of a lock that another holds: the same words wherever a command meets one."""

from contextlib import suppress
from typing import TYPE_CHECKING

from volcano_locks.errors import VolcanoError

from .output import instant_text

if TYPE_CHECKING:
    from volcano_locks import Client


def held_text(client: "Client", key: str, *, undone: str, waited: bool) -> str:
    """Until when `key` is held, if that can be learnt; `undone` is what was not done, as in "nothing was run"."""
    until = ""
    with suppress(VolcanoError):
        state = client.locks.get(key)
        if state.held and state.expires_at is not None:
            until = f" until {instant_text(state.expires_at)} unless renewed"
    advice = "" if waited else " (-w DURATION waits for it)"
    return f"{key} is held by another{until}; {undone}{advice}"
