from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.compression.dct import dct_
from distro_fed.errors import TrainingError
from distro_fed.layout import Layout, TensorSpec
from distro_fed.optim.coefficient_order import CHUNK, CHUNK_VALUES, CoefficientOrder
from tests.optim.reference import chunks, select, transform


def layout_of(shapes: list[tuple[int, ...]]) -> Layout:
    return Layout(TensorSpec(str(i), shape) for i, shape in enumerate(shapes))


shapes = st.lists(
    st.one_of(
        st.just(()),
        st.tuples(st.integers(0, 200)),
        st.tuples(st.sampled_from([1, 3, 63, 64, 65, 127, 128, 130, 192]), st.sampled_from([0, 1, 64, 70, 128])),
        st.tuples(st.integers(1, 3), st.sampled_from([64, 100]), st.sampled_from([64, 65])),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(shapes)
def test_every_coefficient_has_one_number_and_full_chunks_come_first(shapes: list[tuple[int, ...]]) -> None:
    order = CoefficientOrder(layout_of(shapes))
    positions = order.positions(np.arange(order.layout.numel))
    assert sorted(positions.tolist()) == list(range(order.layout.numel))
    full = [
        (tensor, chunk)
        for tensor, shape in enumerate(shapes)
        if 0 not in shape and len(shape) >= 2
        for chunk in chunks(shape)
        if np.zeros(shape)[chunk].size == CHUNK_VALUES
    ]
    assert order.chunks == len(full)
    assert order.pool == order.layout.numel - CHUNK_VALUES * len(full)
    for number, (tensor, chunk) in enumerate(full):
        names = np.arange(order.layout.numel)[order.layout.offsets[tensor] :][: order.layout.specs[tensor].numel]
        expected = names.reshape(shapes[tensor])[chunk].reshape(-1)
        found = positions[number * CHUNK_VALUES : (number + 1) * CHUNK_VALUES]
        np.testing.assert_array_equal(np.sort(found), np.sort(expected))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("k", [1, 3, 50])
@pytest.mark.parametrize("shapes", [[(128, 130), (5,), ()], [(64, 64)], [(20, 30), (7,)], [(2, 64, 128), (65, 64)]])
def test_selection_is_that_of_plain_loops(shapes: list[tuple[int, ...]], k: int) -> None:
    order = CoefficientOrder(layout_of(shapes))
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    slow = select([transform(value.double().numpy()) for value in values], k)
    expected = {
        order.layout.offsets[tensor] + int(np.ravel_multi_index(index, shapes[tensor])) if index else
        order.layout.offsets[tensor]
        for tensor, index in slow
    }  # fmt: skip
    flat = dct_(torch.cat([value.reshape(-1) for value in values]), order.layout, CHUNK)
    numbers, positions = order.select(flat, k)
    assert set(positions.tolist()) == expected
    assert numbers.numel() == order.limit(k)
    assert bool((numbers.diff() > 0).all())
    np.testing.assert_array_equal(order.positions(numbers.numpy()), positions.numpy())


def test_ties_go_to_the_lower_number_and_zeros_to_nobody() -> None:
    order = CoefficientOrder(layout_of([(64, 128), (64,)]))
    flat = torch.zeros(order.layout.numel)
    assert order.select(flat, 4)[0].numel() == 0
    grid = flat[: 64 * 128].view(64, 128)
    grid[5, 70], grid[3, 71], grid[9, 72] = 1.0, -1.0, 0.5  # second chunk
    numbers, positions = order.select(flat, 1)
    assert numbers.tolist() == [CHUNK_VALUES + 3 * 64 + 7]
    assert flat[positions].tolist() == [-1.0]


def test_the_pool_sends_the_same_share_as_a_chunk_but_at_least_one() -> None:
    order = CoefficientOrder(layout_of([(64, 64), (64, 63), (63, 64)]))
    assert (order.chunks, order.pool) == (1, 2 * 64 * 63)
    assert order.pool_share(3) == round(3 * 2 * 64 * 63 / 4096)
    assert order.limit(3) == 3 + order.pool_share(3)
    assert CoefficientOrder(layout_of([(64, 64), (2,)])).pool_share(1) == 1
    assert CoefficientOrder(layout_of([(64, 64), (2,)])).pool_share(4096) == 2
    assert CoefficientOrder(layout_of([(64, 64)])).pool_share(4096) == 0


@pytest.mark.parametrize("where", [0, 64 * 64 + 3])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**64])
def test_values_that_must_not_be_sent(where: int, value: float) -> None:
    order = CoefficientOrder(layout_of([(64, 64), (9,)]))
    flat = torch.zeros(order.layout.numel)
    flat[where] = value
    with pytest.raises(TrainingError, match="diverged"):
        order.select(flat, 1)
