"""Who runs a command that works on a store itself, for the audit (AUDIT-1)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ports.audit_entry import Act


def command_line_act() -> "Act":
    """The act of this command, by the user of this machine who runs it."""
    from getpass import getuser  # noqa: PLC0415

    from ..ports.audit_entry import Act, new_unique  # noqa: PLC0415
    from ..ports.clock import SystemClock  # noqa: PLC0415

    try:
        user = getuser()
    except (KeyError, OSError):  # the user id has no name
        user = "(unknown)"
    return Act(SystemClock().now_ms(), "command_line", None, user, None, None, new_unique())
