"""Pictures as SVG, of one style, that are read on light and on dark pages."""

import html
import math
from collections.abc import Iterable, Sequence

Point = tuple[float, float]
WIDTH = 560
"""Of every picture, so that letters are of one size; a phone shows two thirds of it."""
HUES = ("#5c6785", "#4051b5", "#c2571a", "#2c7a4b", "#a0307f", "#7a6a00")
ON_DARK = ("#a5afcc", "#8c9eff", "#ff9d5c", "#7ccf9c", "#f08bd0", "#d9c64a")
_SERIES = "".join(f".s{k}{{stroke:{hue}}}.f{k}{{fill:{hue}}}" for k, hue in enumerate(HUES))
_DARK = "".join(f".s{k}{{stroke:{hue}}}.f{k}{{fill:{hue}}}" for k, hue in enumerate(ON_DARK))
STYLE = (
    ".page{fill:#fff}text{fill:#1c2333}.quiet{fill:#5c6785}.grid{stroke:#d5d9e6}"
    ".line{fill:none;stroke-width:2}.grid,.edge{stroke-width:1}.box{fill:#eef1fb}.title{font-weight:600}"
    f".small{{font-size:13px}}.code{{font-family:ui-monospace,monospace}}{_SERIES}"
    "@media (prefers-color-scheme:dark){.page{fill:#1e2129}text{fill:#e6e8f0}"
    f".quiet{{fill:#a5afcc}}.grid{{stroke:#3a4157}}.box{{fill:#2a3050}}{_DARK}}}"
)


class Picture:
    """A picture that is drawn from the top left corner.

    Args:
      height: beside `WIDTH`.
      label: what it shows, for those who do not see it.
    """

    def __init__(self, height: int, label: str):
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="system-ui, sans-serif" font-size="15" role="img" '
            f'aria-label="{html.escape(label)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>',
        ]

    def text(self, at: Point, text: str, kind: str = "", anchor: str = "start") -> None:
        """Letters whose baseline is there."""
        self._add(
            f'<text class="{kind}" x="{at[0]:g}" y="{at[1]:g}" text-anchor="{anchor}">'
            f"{html.escape(text)}</text>"
        )

    def line(self, points: Iterable[Point], kind: str) -> None:
        """Straight from point to point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._add(f'<polyline class="line {kind}" points="{path}"/>')

    def dot(self, at: Point, kind: str, radius: float = 4) -> None:
        """A filled circle."""
        self._add(f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:g}"/>')

    def box(self, at: Point, width: float, height: float, kind: str) -> None:
        """A filled rectangle, from its top left corner."""
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self._add(f'<rect class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" {size} rx="3"/>')

    def __str__(self) -> str:
        return "\n".join((*self._parts, "</svg>\n"))

    def _add(self, part: str) -> None:
        self._parts.append(part)


class Axes:
    """A part of a picture in which both axes are logarithmic.

    Args:
      picture: what is drawn into.
      corner, size: the top left corner and the width and height.
      x, y: the least and the largest number of each axis.
    """

    def __init__(self, picture: Picture, corner: Point, size: Point, x: Point, y: Point):
        self._picture, self._corner, self._size = picture, corner, size
        self._ranges = x, y

    def at(self, x: float, y: float) -> Point:
        """Where a point lies in the picture."""
        (left, top), (width, height) = self._corner, self._size
        ranges = zip((x, y), self._ranges, strict=True)
        part = [math.log(v / a) / math.log(b / a) for v, (a, b) in ranges]
        return left + part[0] * width, top + (1 - part[1]) * height

    def ticks(self, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]]) -> None:
        """A line at each number of the axes, with its name."""
        (x0, x1), (y0, y1) = self._ranges
        draw, kind = self._picture, "small quiet"
        for x, name in xs:
            left, bottom = self.at(x, y0)
            draw.line([(left, bottom), self.at(x, y1)], "grid")
            draw.text((left, bottom + 18), name, kind, "middle")
        for y, name in ys:
            left, bottom = self.at(x0, y)
            draw.line([(left, bottom), self.at(x1, y)], "grid")
            draw.text((left - 6, bottom + 5), name, kind, "end")

    def series(self, points: Sequence[Point], hue: int, radius: float = 4) -> None:
        """Dots of one hue, joined by a line."""
        places = [self.at(*point) for point in points]
        self._picture.line(places, f"s{hue}")
        for place in places:
            self._picture.dot(place, f"f{hue}", radius)
