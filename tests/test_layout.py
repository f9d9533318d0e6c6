from __future__ import annotations

import pytest

from distro_fed.errors import LayoutMismatch
from distro_fed.layout import Layout, TensorSpec


def test_places_follow_the_order() -> None:
    layout = Layout([TensorSpec("a", (2, 3)), TensorSpec("b", ()), TensorSpec("c", (0, 4)), TensorSpec("d", (5,))])
    assert layout.numel == 12
    assert [(spec.name, place.start, place.stop) for spec, place in layout.slices()] == [
        ("a", 0, 6), ("b", 6, 7), ("c", 7, 7), ("d", 7, 12),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        [TensorSpec("a", (3, 2))],
        [TensorSpec("b", (2, 3))],
        [TensorSpec("a", (2, 3), "bfloat16")],
        [TensorSpec("a", (2, 3)), TensorSpec("b", ())],
        [TensorSpec("a", (2,)), TensorSpec("b", (3,))],
    ],
)
def test_digest_tells_shape_name_dtype_and_number_apart(other: list[TensorSpec]) -> None:
    layout = Layout([TensorSpec("a", (2, 3))])
    assert layout.digest != Layout(other).digest
    assert layout.explain_difference(Layout(other))


def test_kind_is_not_part_of_the_digest() -> None:
    matrix, other = (Layout([TensorSpec("a", (2, 3), kind=kind)]) for kind in ("matrix", "other"))
    assert matrix.digest == other.digest


def test_a_name_may_not_appear_twice() -> None:
    with pytest.raises(LayoutMismatch, match="'a' appears twice"):
        Layout([TensorSpec("a", ()), TensorSpec("a", (2,))])


def test_a_dtype_that_is_not_trained_is_named() -> None:
    with pytest.raises(LayoutMismatch, match="int64"):
        TensorSpec("a", (), "int64")
