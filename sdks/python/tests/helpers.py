"""Waiting for a condition, counting the client's threads, and running code in a forked child."""

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Callable


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


def client_threads() -> list[threading.Thread]:
    """The background threads of all clients of this process."""
    return [thread for thread in threading.enumerate() if thread.name == "volcano-locks"]
