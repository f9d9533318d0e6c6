import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.reporting.charts import Axis, Marker, Series, _log_ticks, _ticks, line_chart

ROUND = Axis("round", "{:g}".format, "{:g}".format, whole=True)
LOSS = Axis("loss", "{:.4f}".format, "{:g}".format)
BYTES = Axis("bytes <log>", "{:g} B".format, "{:g}".format, log=True)


def numbers(svg: str, tag: str, attribute: str) -> list[float]:
    return [float(element.attrib[attribute]) for element in ET.fromstring(svg).iter(tag)]


def test_better_losses_lie_lower_and_later_rounds_further_right() -> None:
    svg = line_chart("t", [Series("a", [(0, 3.0), (1, 2.0), (2, 1.5)], "c0")], ROUND, LOSS)
    points = next(ET.fromstring(svg).iter("polyline")).attrib["points"].split()
    xs, ys = zip(*(map(float, point.split(",")) for point in points), strict=True)
    assert list(xs) == sorted(xs) and xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert list(ys) == sorted(ys) and ys[1] - ys[0] == pytest.approx(2 * (ys[2] - ys[1]), abs=0.2)


def test_a_log_axis_has_equal_steps_for_equal_factors_and_leaves_zero_out() -> None:
    svg = line_chart("t", [Series("a", [(0, 9), (1e3, 3), (1e5, 2), (1e7, 1)], "c0")], BYTES, LOSS)
    xs = [float(point.split(",")[0]) for point in next(ET.fromstring(svg).iter("polyline")).attrib["points"].split()]
    assert len(xs) == 3
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)


def test_tooltips_name_the_series_and_both_values() -> None:
    svg = line_chart("t", [Series("<b>&", [(10, 2.5)], "c0")], BYTES, LOSS)
    assert [title.text for title in ET.fromstring(svg).iter("title")] == ["<b>&: 2.5000 at 10 B"]


def test_the_axis_reaches_a_marker() -> None:
    svg = line_chart("t", [Series("a", [(1e3, 1), (1e4, 2)], "c0")], BYTES, LOSS, [Marker(5e8, "R1")])
    marker = next(line for line in ET.fromstring(svg).iter("line") if line.attrib["class"] == "marker")
    assert max(numbers(svg, "circle", "cx")) < float(marker.attrib["x1"]) <= 540


def test_nothing_to_draw_is_said() -> None:
    assert "No loss" in line_chart("t", [Series("a", [(0, 1.0)], "c0")], BYTES, LOSS)


POINTS = st.lists(st.tuples(st.floats(1, 1e12), st.floats(-1e6, 1e6)), min_size=1, max_size=5).map(sorted)


@settings(deadline=None)
@given(POINTS)
def test_every_point_lies_inside_the_picture(points: list[tuple[float, float]]) -> None:
    svg = line_chart("t", [Series("a", points, "c0")], BYTES, LOSS)
    assert all(0 <= x <= 540 for x in numbers(svg, "circle", "cx"))
    assert all(0 <= y <= 350 for y in numbers(svg, "circle", "cy"))


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(0, 1e9), st.booleans())
def test_ticks_enclose_and_are_few(low: float, span: float, whole: bool) -> None:
    ticks = _ticks(low, low + span, whole=whole)
    slack = 1e-8 * (span + max(1, abs(low)))
    assert ticks[0] <= low + slack and ticks[-1] >= low + span - slack
    assert 2 <= len(ticks) <= 10
    assert not whole or all(tick == round(tick) for tick in ticks)


@settings(deadline=None)
@given(st.floats(1, 1e15), st.floats(1, 1e15))
def test_log_ticks_enclose(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    ticks = _log_ticks(low, high)
    assert ticks[0] <= low * (1 + 1e-9) and ticks[-1] >= high * (1 - 1e-9)
    assert ticks == sorted(ticks) and len(ticks) >= 2
    assert math.log10(ticks[-1] / ticks[0]) < math.log10(high / low) + 2.1
