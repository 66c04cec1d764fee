"""The options for how long a command waits for a lock: `-n` (default), `-w DURATION` or `--wait` without limit."""

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

import click

from .durations import parse_duration
from .parameters import WAIT

R = TypeVar("R")


class WaitingCommand(click.Command):
    """Points to `-w` if `--wait` was given a duration and the arguments cannot be parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's parsing."""
        original = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            given = _duration_after_wait(original)
            if given is None:
                raise
            advice = f"--wait has no limit and takes no value; for a limit use -w {given}"
            raise click.UsageError(f"{error.format_message()}\n{advice}", ctx) from None


def _duration_after_wait(args: list[str]) -> str | None:
    """The duration given to `--wait`, which takes no value; None if there is none."""
    following = [after for each, after in pairwise(args) if each == "--wait"]
    for given in (*following, *(each.removeprefix("--wait=") for each in args if each.startswith("--wait="))):
        try:
            parse_duration(given)
        except ValueError:
            continue
        return given
    return None


def wait_options(command: Callable[..., R]) -> Callable[..., R]:
    """Adds -n, -w and --wait; `command` gets them as its argument `wait`, in seconds."""

    @wraps(command)
    def waiting(*, no_wait: bool, at_most: int | None, without_limit: bool, **arguments: Any) -> R:
        if sum((no_wait, at_most is not None, without_limit)) > 1:
            raise click.UsageError("use only one of -n, -w and --wait")
        return command(wait=inf if without_limit else float(at_most or 0), **arguments)

    no_wait = click.option("-n", "--no-wait", is_flag=True, help="Do not wait if the lock is held (the default).")
    at_most = click.option(
        "-w", "at_most", type=WAIT, metavar="DURATION", help="Wait in the lock's queue, at most this long: 30s, 5m, 2h."
    )
    without_limit = click.option("--wait", "without_limit", is_flag=True, help="Wait in the queue without a limit.")
    return no_wait(at_most(without_limit(waiting)))
