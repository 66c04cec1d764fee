"""How the demo speaks: plain aligned lines, coloured only for a terminal that wants it."""

import os
import sys
import textwrap
import time
from typing import Final

WIDTH: Final = 78
INDENT: Final = 21
_COLOURED: Final = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
_PAINT: Final = {"bold": "1", "green": "32", "red": "31", "dim": "2"}
_STARTED: Final = time.monotonic()


def _painted(text: str, *styles: str) -> str:
    if not _COLOURED:
        return text
    return f"\x1b[{';'.join(_PAINT[style] for style in styles)}m{text}\x1b[0m"


def heading(text: str) -> None:
    """The beginning of an act."""
    print(f"\n{_painted(text, 'bold')}", flush=True)


def explain(text: str) -> None:
    """A paragraph for the reader."""
    print(textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="  ", subsequent_indent="  "), flush=True)


def event(who: str, what: str, style: str = "") -> None:
    """Something that happened just now: the seconds since the start, who, and what."""
    seconds = f"{time.monotonic() - _STARTED:5.1f} s"
    first, *rest = textwrap.wrap(what, WIDTH - INDENT)
    print(f"  {_painted(seconds, 'dim')}  {who:<8}  {_painted(first, style) if style else first}", flush=True)
    for line in rest:
        print(" " * INDENT + (_painted(line, style) if style else line), flush=True)


def failure(text: str) -> None:
    """The story broke."""
    print(f"\n{_painted('The demo did not go as told:', 'bold', 'red')} {text}", file=sys.stderr, flush=True)
