"""A date that a test sets for processes, while their monotonic clocks stay right (libfaketime)."""

import subprocess
import time
from pathlib import Path

LIBRARY = "/usr/$LIB/faketime/libfaketimeMT.so.1"  # of Debian's libfaketime; the loader knows what $LIB is


class FakedDate:
    """The date of the processes that run with `environment`; `step` moves it, also while they run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.environment = {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
        }
        self.step(0)
        file.chmod(0o644)

    def step(self, seconds: int) -> None:
        """From now on the date is that far ahead of the true one, behind if negative."""
        self._file.write_text(f"{seconds:+}s\n")
        began_at = time.time()
        shown = subprocess.run(["date", "+%s"], env=self.environment, capture_output=True, check=True).stdout
        # The loader ignores a missing library, and then a test would pass for the wrong reason.
        true_date = int(shown) - seconds
        assert began_at - 2 < true_date < time.time() + 2, "the tests need libfaketime: apt-get install"
