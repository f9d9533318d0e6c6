"""Line charts as SVG text, styled by the page around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 540, 350
LEFT, RIGHT, TOP, BOTTOM = 64, 26, 14, 54


@dataclass(frozen=True, slots=True)
class Series:
    """One line.

    Attributes
    ----------
    name : str
        For the tooltips.
    points : sequence of (float, float)
        Finite values, x ascending.
    style : str
        CSS class of the line.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line at ``x`` with a word on it."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis says.

    Attributes
    ----------
    label : str
        With the unit.
    form : callable
        Number to text, for tooltips.
    tick : callable
        Number to text, for ticks.
    log : bool
        Logarithmic; values must be positive.
    whole : bool
        Ticks at whole numbers only.
    """

    label: str
    form: Callable[[float], str]
    tick: Callable[[float], str]
    log: bool = False
    whole: bool = False


class _Scale:
    """Maps values of one axis to pixels, and knows where its ticks are."""

    def __init__(self, values: Sequence[float], axis: Axis, start: float, end: float) -> None:
        self.axis, self._start, self._end = axis, start, end
        low, high = min(values), max(values)
        if axis.log:
            self.ticks = _log_ticks(low, high)
            self._low, self._high = math.log10(min(low, self.ticks[0])), math.log10(max(high, self.ticks[-1]))
        else:
            self.ticks = _ticks(low, high, whole=axis.whole)
            self._low, self._high = self.ticks[0], self.ticks[-1]

    def __call__(self, value: float) -> float:
        place = math.log10(value) if self.axis.log else value
        return self._start + (place - self._low) / (self._high - self._low) * (self._end - self._start)


def line_chart(title: str, series: Sequence[Series], x_axis: Axis, y_axis: Axis, markers: Sequence[Marker] = ()) -> str:
    """Draw lines with dots, axes, a grid and tooltips.

    Parameters
    ----------
    title : str
        Read out by screen readers; the page shows its own heading.
    series : sequence of Series
        The last one lies on top. Names may come from outside: they are escaped.
    x_axis, y_axis : Axis
        A point with x <= 0 is left out of a logarithmic x axis.
    markers : sequence of Marker
        Vertical lines; the x axis reaches them.

    Returns
    -------
    str
        One ``<svg>`` element, or a paragraph if there is nothing to draw.
    """
    kept = [(line, [point for point in line.points if not x_axis.log or point[0] > 0]) for line in series]
    points = [point for _, line_points in kept for point in line_points]
    if not points:
        return '<p class="empty">No loss was measured.</p>'
    x = _Scale([*(place for place, _ in points), *(marker.x for marker in markers)], x_axis, LEFT, WIDTH - RIGHT)
    y = _Scale([value for _, value in points], y_axis, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(x, y),
        *(_marker(marker, x) for marker in markers),
    ]
    for line, line_points in kept:
        parts += _line(line, line_points, x, y)
    return "\n".join([*parts, "</svg>"])


def _grid(x: _Scale, y: _Scale) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y.ticks:
        at = f"{y(tick):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(_text("tick", y.axis.tick(tick), "end", f'x="{LEFT - 8}" y="{at}" dy="0.32em"'))
    for tick in x.ticks:
        at = f"{x(tick):.1f}"
        parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 5}"/>')
        parts.append(_text("tick", x.axis.tick(tick), "middle", f'x="{at}" y="{bottom + 20}"'))
    middle = (TOP + bottom) / 2
    parts += [
        f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>',
        _text("label", x.axis.label, "middle", f'x="{(LEFT + right) / 2}" y="{HEIGHT - 8}"'),
        _text("label", y.axis.label, "middle", f'transform="translate(14 {middle}) rotate(-90)"'),
    ]
    return parts


def _text(style: str, text: str, anchor: str, place: str) -> str:
    return f'<text class="{style}" text-anchor="{anchor}" {place}>{escape(text)}</text>'


def _marker(marker: Marker, x: _Scale) -> str:
    at = f"{x(marker.x):.1f}"
    # the word stands on the left of its line, where the chart always has room
    return f'<line class="marker" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' + _text(
        "marker-label", marker.label, "end", f'x="{at}" dx="-6" y="{TOP + 12}"'
    )


def _line(line: Series, points: Sequence[tuple[float, float]], x: _Scale, y: _Scale) -> list[str]:
    places = [(f"{x(left):.1f}", f"{y(up):.1f}") for left, up in points]
    path = " ".join(f"{left},{up}" for left, up in places)
    parts = [f'<g class="series {line.style}">', f'<polyline points="{path}"/>']
    for (left, up), (place, value) in zip(places, points, strict=True):
        words = f"{line.name}: {y.axis.form(value)} at {x.axis.form(place)}"
        parts.append(
            f'<g class="dot"><circle class="reach" cx="{left}" cy="{up}" r="9"/>'
            f'<circle cx="{left}" cy="{up}" r="3"/><title>{escape(words)}</title></g>'
        )
    return [*parts, "</g>"]


def _ticks(low: float, high: float, *, whole: bool, wanted: int = 6) -> list[float]:
    """Round numbers that enclose low and high."""
    if high - low <= 1e-9 * max(1.0, abs(low)):
        pad = 1.0 if whole else max(abs(low) * 0.05, 0.05)
        low, high = low - (0 if whole else pad), high + pad
    step = _round_step((high - low) / wanted)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _round_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose low and high; with 2 and 5 between them if those are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    # one decade more on both sides: log10 of a number just beside a power of ten rounds to that power
    factors = (1,) if last - first > 2 else (1, 2, 5)
    ticks = [factor * 10.0**power for power in range(first - 1, last + 2) for factor in factors]
    below = max(tick for tick in ticks if tick <= low)
    above = min(tick for tick in ticks if tick >= high and tick > below)
    return [tick for tick in ticks if below <= tick <= above]
