"""Progress of long benchmarks, on stderr."""

import sys
import time
from typing import Final

_BEGAN: Final = time.monotonic()


def progress(text: str) -> None:
    """Print one line with the time since the program's start."""
    minutes, seconds = divmod(int(time.monotonic() - _BEGAN), 60)
    print(f"[{minutes:3d}:{seconds:02d}] {text}", file=sys.stderr, flush=True)
