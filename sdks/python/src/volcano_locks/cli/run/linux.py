"""Two process settings that only Linux has; on other systems both functions do nothing and return False.

They reduce the cases in which a command outlives `run`. Correctness does not depend on them: that is what the fencing
token is for.
"""

import ctypes
import os
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> bool:
    """Makes `run` the parent of orphaned descendants, so that it can reap them.

    Otherwise they go to process 1, which in many containers never reaps: their group would look alive forever.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_id: int, signal_number: int) -> bool:
    """Asks the kernel to send this process `signal_number` when its parent dies, even after an exec.

    The parent is the thread that forked this process, so it must be one that lives as long as its process. False if it
    is already dead. The setting is lost if the program is set-user-id.
    """
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    return os.getppid() == parent_id


def _prctl(option: int, argument: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(option, argument, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
