"""Exit codes, and the one exception that carries a message and a code to the top (CLI exit codes).

The numbers are those of sysexits.h where it has one. `run` otherwise ends with the code of its command,
so a script can tell "the job failed" from "the job did not run".
"""

from typing import Final

NOT_DONE: Final = 1
USAGE: Final = 64
UNAVAILABLE: Final = 69
INTERNAL: Final = 70
INPUT_OUTPUT: Final = 74
NOT_ACQUIRED: Final = 75
OWNERSHIP_LOST: Final = 76
CREDENTIALS: Final = 77
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNAL_BASE: Final = 128


class Stop(Exception):  # noqa: N818 (an ending, not always an error)
    """Ends the command: `message` for stderr (None is silence) and the exit code."""

    def __init__(self, message: str | None, exit_code: int) -> None:
        super().__init__(message or "")
        self.message = message
        self.exit_code = exit_code


class Interrupted(BaseException):
    """A signal that asks to end came while nothing was running yet. No `except Exception` may swallow it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = SIGNAL_BASE + signal_number
