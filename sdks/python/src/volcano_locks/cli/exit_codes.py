"""Exit codes, and the exceptions that carry them to `App.main` (CLI-4).

The numbers are those of sysexits.h. Otherwise `run` ends with the code of its command, so a script can distinguish "the
job failed" from "the job did not run".
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


class Exit(Exception):  # noqa: N818 (the code may be 0)
    """Ends the command with an exit code, after printing `message` on stderr unless it is None."""

    def __init__(self, message: str | None, exit_code: int) -> None:
        super().__init__(message or "")
        self.message = message
        self.exit_code = exit_code


class Interrupted(BaseException):
    """A signal asked `run` to end before its command started. No `except Exception` may catch it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = SIGNAL_BASE + signal_number
