"""The demo's output: plain aligned lines, coloured only on a terminal that allows it."""

import os
import sys
import textwrap
import time
from typing import Final

WIDTH: Final = 78
INDENT: Final = 21
_COLOURED: Final = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
_CODES: Final = {"bold": "1", "green": "32", "red": "31", "dim": "2"}
_STARTED: Final = time.monotonic()


def _styled(text: str, *styles: str) -> str:
    if not _COLOURED:
        return text
    return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def heading(text: str) -> None:
    """The heading of a step."""
    print(f"\n{_styled(text, 'bold')}", flush=True)


def explain(text: str) -> None:
    """A paragraph for the reader."""
    print(textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="  ", subsequent_indent="  "), flush=True)


def event(actor: str, text: str, style: str = "") -> None:
    """An event that has just happened: the seconds since the start, the actor, and what happened."""
    seconds = f"{time.monotonic() - _STARTED:5.1f} s"
    first, *rest = textwrap.wrap(text, WIDTH - INDENT)
    print(f"  {_styled(seconds, 'dim')}  {actor:<8}  {_styled(first, style) if style else first}", flush=True)
    for line in rest:
        print(" " * INDENT + (_styled(line, style) if style else line), flush=True)


def failure(text: str) -> None:
    """The demo failed."""
    print(f"\n{_styled('The demo failed:', 'bold', 'red')} {text}", file=sys.stderr, flush=True)
