"""How long a command waits for a lock: `-n` not at all, which is the default, `-w DURATION`, or `--wait` for ever."""

from collections.abc import Callable
from functools import wraps
from math import inf
from typing import Any, TypeVar

import click

from .parameters import WAIT

R = TypeVar("R")


def wait_options(command: Callable[..., R]) -> Callable[..., R]:
    """-n, -w and --wait; `command` gets them as its argument `wait`, in seconds."""

    @wraps(command)
    def waiting(*, no_wait: bool, at_most: int | None, for_ever: bool, **arguments: Any) -> R:
        if sum((no_wait, at_most is not None, for_ever)) > 1:
            raise click.UsageError("-n, -w and --wait exclude each other")
        return command(wait=inf if for_ever else float(at_most or 0), **arguments)

    no_wait = click.option("-n", "--no-wait", is_flag=True, help="Do not wait when the lock is held. The default.")
    at_most = click.option(
        "-w", "at_most", type=WAIT, metavar="DURATION", help="Wait in the lock's line, at most so long."
    )
    for_ever = click.option("--wait", "for_ever", is_flag=True, help="Wait in the lock's line, for ever.")
    return no_wait(at_most(for_ever(waiting)))
