"""Returns freed memory to the system.

A TLS connection allocates about 330 KB, of which few pages are used. glibc keeps what is freed for itself. Later
connections get other parts of it, so that after some thousand connections all of it is resident (HTTP-24).
"""

import ctypes
import sys
from typing import Final

TLS_CONNECTIONS_PER_TRIM: Final = 512  # a trim takes about 10 ms after so many


def trim() -> None:
    """Return the free pages of the heap. Does nothing if the C library has no `malloc_trim`."""
    if _malloc_trim is not None:
        _malloc_trim(0)


_malloc_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
