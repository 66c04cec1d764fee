"""Line charts as SVG files, readable on light and dark pages. The points of all series stand over the same names."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 720
HEIGHT: Final = 400
LEFT: Final = 76
RIGHT: Final = 24
TOP: Final = 92
BOTTOM: Final = 66
TICKS: Final = 5
STYLE: Final = """
text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-size:16px;font-weight:600}.grid{stroke:#d0d7de}
.back{fill:#fff}.c0{--c:#0a5fd1}.c1{--c:#c2410c}.c2{--c:#15803d}.c3{--c:#7e22ce}
path{fill:none;stroke:var(--c);stroke-width:2.5}circle,rect.key{fill:var(--c)}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}.back{fill:#0d1117}
.c0{--c:#6cb6ff}.c1{--c:#ffa657}.c2{--c:#56d364}.c3{--c:#d2a8ff}}"""


class LineChart(NamedTuple):
    """A chart: one line for each series, with a value above each name, or None if there is none.

    `values` says what is measured, with its unit. `logarithmic` is for values that span powers of ten.
    """

    file_name: str
    title: str
    names: Sequence[str]
    names_are: str
    values: str
    series: Mapping[str, Sequence[float | None]]
    logarithmic: bool = False

    def svg(self) -> str:
        """The file's text."""
        present = [value for line in self.series.values() for value in line if value is not None]
        ticks = _powers(min(present), max(present)) if self.logarithmic else _round_steps(max(present))
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">',
            f"<title>{escape(self.title)}</title><style>{STYLE}</style>",
            f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
            _text(LEFT, 28, self.title, "title"),
            _text(LEFT, TOP - 14, self.values),
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, self.names_are, anchor="middle"),
        ]
        for tick in ticks:
            y = self._y(tick, ticks)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(_text(LEFT - 8, y + 4, f"{tick:,g}", anchor="end"))
        for index, name in enumerate(self.names):
            parts.append(_text(self._x(index), HEIGHT - BOTTOM + 22, name, anchor="middle"))
        key_x: float = LEFT
        for number, (name, line) in enumerate(self.series.items()):
            points = [(self._x(at), self._y(one, ticks)) for at, one in enumerate(line) if one is not None]
            path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points)
            key = f'<rect class="key" x="{key_x:.0f}" y="46" width="12" height="12" rx="2"/>'
            parts.append(f'<g class="c{number}"><path d="M{path}"/>{circles}{key}</g>{_text(key_x + 18, 57, name)}')
            key_x += 40 + 7.2 * len(name)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _x(self, index: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / len(self.names)

    def _y(self, value: float, ticks: Sequence[float]) -> float:
        low, high, at = (math.log(one) if self.logarithmic else one for one in (ticks[0], ticks[-1], value))
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (at - low) / (high - low)


def _powers(least: float, most: float) -> list[float]:
    """Powers of ten around both values."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _round_steps(most: float) -> list[float]:
    """About TICKS steps from 0 to beyond the value, each 1, 2 or 5 times a power of ten."""
    magnitude = 10.0 ** math.floor(math.log10(most / TICKS))
    step = next(one * magnitude for one in (1, 2, 5, 10) if one * magnitude * TICKS >= most)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
