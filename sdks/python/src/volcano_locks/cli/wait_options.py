"""How long a command waits for a lock: `-n` not at all, which is the default, `-w DURATION`, or `--wait` for ever."""

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
    """Says that `--wait` takes no time, where somebody gave it one and the line cannot be understood."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's parsing."""
        asked = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            given = _time_after_wait(asked)
            if given is None:
                raise
            advice = f"--wait waits for ever and takes no time: write -w {given} to wait at most so long"
            raise click.UsageError(f"{error.format_message()}\n{advice}", ctx) from None


def _time_after_wait(args: list[str]) -> str | None:
    """The duration that `--wait` was given, which takes none."""
    follows = [after for each, after in pairwise(args) if each == "--wait"]
    for given in (*follows, *(each.removeprefix("--wait=") for each in args if each.startswith("--wait="))):
        try:
            parse_duration(given)
        except ValueError:
            continue
        return given
    return None


def wait_options(command: Callable[..., R]) -> Callable[..., R]:
    """-n, -w and --wait; `command` gets them as its argument `wait`, in seconds."""

    @wraps(command)
    def waiting(*, no_wait: bool, at_most: int | None, for_ever: bool, **arguments: Any) -> R:
        if sum((no_wait, at_most is not None, for_ever)) > 1:
            raise click.UsageError("-n, -w and --wait exclude each other")
        return command(wait=inf if for_ever else float(at_most or 0), **arguments)

    no_wait = click.option("-n", "--no-wait", is_flag=True, help="Do not wait when the lock is held. The default.")
    at_most = click.option(
        "-w", "at_most", type=WAIT, metavar="DURATION", help="Wait in the lock's line, at most so long: 30s, 5m, 2h."
    )
    for_ever = click.option("--wait", "for_ever", is_flag=True, help="Wait in the lock's line, for ever.")
    return no_wait(at_most(for_ever(waiting)))
