"""Waiting for a condition, counting the client's threads, and running code in a forked child."""

import asyncio
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable

from volcano_locks.sync.renewals import Renewals


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until `condition` is true."""
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at, "the condition never became true"
        await asyncio.sleep(0.001)


def in_a_fork(work: Callable[[], str]) -> str:
    """Return what `work` returns in a forked child."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


def eventually(condition: Callable[[], bool]) -> None:
    """Block until `condition` is true."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, "the condition never became true"
        time.sleep(0.001)


def client_threads() -> list[int]:
    """The identifiers of the threads in which the clients of this process renew."""
    return [
        identifier
        for identifier, frame in sys._current_frames().items()
        if any(each.f_code is Renewals._work.__code__ for each, _ in traceback.walk_stack(frame))
    ]
