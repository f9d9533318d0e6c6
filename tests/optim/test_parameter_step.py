from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from distro_fed.layout import Layout, TensorSpec
from distro_fed.optim import parameter_step
from distro_fed.optim.coefficient_order import CoefficientOrder
from distro_fed.optim.parameter_step import step_parameters
from distro_fed.optim.votes import Votes
from tests.optim.reference import transform


def signs_of(shape: tuple[int, ...], numbers: list[int], positive: list[bool]) -> np.ndarray:
    order = CoefficientOrder(Layout([TensorSpec("a", shape)]))
    weight = nn.Parameter(torch.zeros(shape))
    votes = Votes.of_one_peer(np.array(numbers, np.int64), np.array(positive, bool))
    step_parameters([weight], order, votes, [1.0], [0.0])
    return -weight.detach().numpy()


def test_where_cosines_cancel_the_step_is_zero() -> None:
    # cos(x) cos(2y) - cos(2x) cos(y) is zero on the diagonal; floating point gives either sign there
    found = signs_of((64, 64), [1 * 64 + 2, 2 * 64 + 1], [True, False])
    assert (np.diag(found) == 0).all()
    assert (found == 0).sum() == 64
    # cos 36° cos 72° is cos 60° cos 60°, but not after the basis was rounded
    assert signs_of((60, 60), [24 * 60 + 48, 40 * 60 + 40], [True, False])[0, 0] == 0
    middle = signs_of((35,), [1], [True])  # an odd number of values: a cosine is zero in the middle
    assert middle[17] == 0 and (middle == 0).sum() == 1


@pytest.mark.parametrize("few", [0, 32])
@pytest.mark.parametrize("count", [1, 40])
def test_both_ways_to_invert_give_the_same_bits(count: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_step, "_FEW", few)
    rng = np.random.default_rng(0)
    numbers = sorted(rng.choice(2 * 4096, count, replace=False).tolist())
    positive = (rng.random(count) < 0.5).tolist()
    found = signs_of((64, 128), numbers, positive)
    coefficients = np.zeros((64, 128))
    places = CoefficientOrder(Layout([TensorSpec("a", (64, 128))])).positions(np.array(numbers))
    coefficients.reshape(-1)[places] = np.where(positive, 1.0, -1.0)
    exact = transform(coefficients, inverse=True)
    clear = np.abs(exact) > 1e-3
    np.testing.assert_array_equal(found[clear], np.sign(exact)[clear])
    monkeypatch.setattr(parameter_step, "_FEW", 10**6)
    np.testing.assert_array_equal(found, signs_of((64, 128), numbers, positive))


def test_many_blocks_give_the_same_bits_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    numbers = sorted(rng.choice(256 * 130, 60, replace=False).tolist())
    whole = signs_of((256, 130), numbers, [True] * 60)
    monkeypatch.setattr(parameter_step, "_BLOCK", 1)
    np.testing.assert_array_equal(whole, signs_of((256, 130), numbers, [True] * 60))


def test_weight_decay_reaches_tensors_without_votes() -> None:
    order = CoefficientOrder(Layout([TensorSpec("a", (64, 64)), TensorSpec("b", (5,))]))
    weights = [nn.Parameter(torch.ones(64, 64)), nn.Parameter(torch.ones(5))]
    votes = Votes.of_one_peer(np.array([0]), np.array([True]))
    step_parameters(weights, order, votes, [0.25, 0.5], [0.5, 0.5])
    assert torch.equal(weights[0], torch.full((64, 64), 1 - 0.125 - 0.25))
    assert torch.equal(weights[1], torch.full((5,), 0.75))


def test_the_largest_sums_are_exact() -> None:
    """All 4096 coefficients of a chunk for the same sign: the corner adds 2**23 * 2**30 in the worst case."""
    found = signs_of((64, 64), list(range(4096)), [True] * 4096)
    exact = transform(np.ones((64, 64)), inverse=True)
    clear = np.abs(exact) > 0.2
    np.testing.assert_array_equal(found[clear], np.sign(exact)[clear])
    assert found[0, 0] == 1
