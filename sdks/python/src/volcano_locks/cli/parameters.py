"""Parameter types for click: durations within limits, and exit codes."""

from typing import Final

import click

from .durations import duration_text, parse_duration


class Duration(click.ParamType[int]):
    """A duration from `minimum` to `maximum` seconds, converted to whole seconds (CLI-3)."""

    name = "duration"

    def __init__(self, minimum: int, maximum: int) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns seconds. Raises a usage error for anything else."""
        if isinstance(value, int):
            return value
        text = str(value)
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self.minimum <= seconds <= self.maximum:
            limits = f"{duration_text(self.minimum)} to {duration_text(self.maximum)}"
            self.fail(f"must be {limits}; got {text[:40]!r}", param, ctx)
        return seconds


TTL: Final = Duration(5, 90 * 86_400)
WAIT: Final = Duration(0, 90 * 86_400)
HOLD: Final = Duration(1, 90 * 86_400)
KEEP_OLD: Final = Duration(0, 7 * 86_400)
KEY_LIFE: Final = Duration(1, 3_650 * 86_400)
EXIT_CODE: Final = click.IntRange(0, 255)
