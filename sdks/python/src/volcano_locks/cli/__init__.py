"""The command line, `volcano-locks`: a door to the client for shells, cron and people.

Data goes to stdout, messages to stderr, and the exit code says what happened (`exits`). Nothing here is
imported by the client itself, and each command is imported only when it is asked for, because `run` is
started by cron every minute on every host.

click is optional for the distribution, so it is missing when only the client was installed; then `main`
says what to install instead of showing a traceback.
"""

import signal
import sys


def main() -> None:
    """Entry point of the console script; ends the process with a code of `exits`."""
    try:
        from .app import app  # noqa: PLC0415 (click may be absent)
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(
            "volcano-locks: the command line needs its extra; install it with: pip install 'volcano-locks[cli]'\n"
        )
        raise SystemExit(64) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    try:
        app()
    finally:
        # How it ended is settled: an interrupt while Python winds up must not make another ending of it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
