"""The command line, `volcano-locks`: the client for shells, cron and people.

Data goes to stdout, messages to stderr, and the exit code reports the result (`exit_codes`). The client imports
nothing from here. A command's module is imported when that command runs, because cron may start `run` every minute on
every host. click is an optional dependency: if it is missing, `main` names what to install.
"""

import signal
import sys

from .streams import make_safe


def main() -> None:
    """Entry point of the console script. Ends the process with a code of `exit_codes`."""
    make_safe()
    try:
        from .app import app  # noqa: PLC0415 (click may be absent)
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(
            "volcano-locks: the command line needs click; install it with: pip install 'volcano-locks[cli]'\n"
        )
        raise SystemExit(64) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    try:
        app()
    finally:
        # The exit code is decided: an interrupt while Python shuts down must not change it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
