"""The demo's output: aligned plain text, coloured only on a terminal that supports it."""

import os
import sys
import textwrap
import time
from typing import Final

WIDTH: Final = 78
INDENT: Final = 21
_COLOURS: Final = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
_STYLES: Final = {"bold": "1", "green": "32", "red": "31", "dim": "2"}
_STARTED: Final = time.monotonic()


def _styled(text: str, *styles: str) -> str:
    if not _COLOURS:
        return text
    return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"


def heading(text: str) -> None:
    """Print the heading of a part."""
    print(f"\n{_styled(text, 'bold')}", flush=True)


def explain(text: str) -> None:
    """Print a paragraph."""
    print(textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="  ", subsequent_indent="  "), flush=True)


def event(who: str, what: str, style: str = "") -> None:
    """Print an event: the seconds since the start, the actor, and what happened."""
    seconds = f"{time.monotonic() - _STARTED:5.1f} s"
    first, *rest = textwrap.wrap(what, WIDTH - INDENT)
    print(f"  {_styled(seconds, 'dim')}  {who:<8}  {_styled(first, style) if style else first}", flush=True)
    for line in rest:
        print(" " * INDENT + (_styled(line, style) if style else line), flush=True)


def failure(text: str) -> None:
    """Print why the demo failed."""
    print(f"\n{_styled('The demo failed:', 'bold', 'red')} {text}", file=sys.stderr, flush=True)
