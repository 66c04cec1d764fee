"""Two favours the Linux kernel does for `run`; elsewhere both do nothing and say False.

Neither is needed for the promise that one holder works at a time (that is the fencing token's); they make
fewer workers outlive their wrapper.
"""

import ctypes
import os
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> bool:
    """Processes below us whose parent dies become our children, so that we learn of their end and reap them.

    Without it they go to process 1, which in many containers never reaps: their group would look alive for ever.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_id: int, signal_number: int) -> bool:
    """Have the kernel send us `signal_number` when the parent dies, also after an exec. False: it is dead already.

    Lost over an exec of a set-user-id program.
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
