"""The message about a lock that another client holds, the same for every command."""

from volcano_locks.errors import LockHeldError

from .output import instant_text


def lock_held_message(held: LockHeldError, key: str, consequence: str, *, waited: bool) -> str:
    """Who holds `key` and until when, if the server sent it; `consequence`: for example "nothing was run"."""
    until = "" if held.expires_at is None else f" until {instant_text(held.expires_at)} unless renewed"
    advice = "" if waited else "\n-w DURATION waits for the lock, --wait without a limit."
    return f"{key} is held by {held.holder or 'another client'}{until}; {consequence}{advice}"
