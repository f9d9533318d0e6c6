from __future__ import annotations

import pytest
import torch
from torch import nn

from distro_fed.compression.dct import add_inverse_dct_
from distro_fed.layout import Layout, TensorSpec
from distro_fed.optim.coefficient_order import CoefficientOrder
from distro_fed.optim.momentum import LocalMomentum, LocalStep, MomentumOptions

ORDER = CoefficientOrder(Layout([TensorSpec("a", (64, 64)), TensorSpec("b", (10,))]))


def weights(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(10))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


def momentum_of(local_step: LocalStep = "gradient", beta: float = 0.9) -> LocalMomentum:
    return LocalMomentum(ORDER, torch.device("cpu"), MomentumOptions(beta, local_step, (0.8, 0.9), 1e-6))


def in_parameters(momentum: LocalMomentum) -> torch.Tensor:
    flat = torch.zeros(ORDER.layout.numel)
    add_inverse_dct_(momentum.coefficients.clone(), flat, ORDER.layout)
    return flat


def test_gradients_add_up_with_decay_and_their_own_rates() -> None:
    momentum, expected = momentum_of(), torch.zeros(ORDER.layout.numel)
    for seed in range(3):
        parameters = weights(seed)
        momentum.add_gradients(parameters, [0.5, 0.25])
        scaled = [parameter.grad * rate for parameter, rate in zip(parameters, (0.5, 0.25), strict=True)]  # type: ignore[operator]
        expected = 0.9 * expected + torch.cat([value.reshape(-1) for value in scaled])
    torch.testing.assert_close(in_parameters(momentum), expected, atol=1e-5, rtol=0)


def test_the_adamw_step_is_that_of_torch() -> None:
    """With no decay of the buffer, and weight decay left to the common half."""
    momentum = momentum_of("adamw", beta=0.0)
    parameters = weights()
    adam = torch.optim.AdamW(parameters, lr=0.5, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.0)
    for seed in range(4):
        for parameter, new in zip(parameters, weights(seed), strict=True):
            parameter.grad = new.grad
        if seed == 2:
            parameters[1].grad.zero_()  # type: ignore[union-attr]
        before = torch.cat([parameter.detach().reshape(-1).clone() for parameter in parameters])
        adam.step()
        after = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        if seed == 2:
            parameters[1].grad = None  # counts as zero
        momentum.add_gradients(parameters, [0.5, 0.5])
        torch.testing.assert_close(in_parameters(momentum), before - after, atol=2e-5, rtol=0)


def test_what_is_taken_leaves_the_buffer_and_can_be_given_back() -> None:
    momentum = momentum_of()
    momentum.add_gradients(weights(), [1.0, 1.0])
    whole = momentum.coefficients.clone()
    votes = momentum.take(7)
    positions = torch.from_numpy(ORDER.positions(votes.numbers))
    assert not momentum.coefficients[positions].any()
    assert ((whole[positions] > 0).numpy() == (votes.positive == 1)).all()
    untouched = torch.ones_like(whole, dtype=torch.bool)
    untouched[positions] = False
    assert torch.equal(momentum.coefficients[untouched], whole[untouched])
    assert torch.equal(momentum.state_dict()["coefficients"], whole)
    momentum.give_back()
    assert torch.equal(momentum.coefficients, whole)
    momentum.coefficients.zero_()
    momentum.give_back()
    assert not momentum.coefficients.any()


def test_what_was_delivered_does_not_come_back() -> None:
    momentum = momentum_of()
    momentum.add_gradients(weights(), [1.0, 1.0])
    momentum.take(7)
    rest = momentum.coefficients.clone()
    momentum.delivered()
    momentum.give_back()
    assert torch.equal(momentum.coefficients, rest)


def test_what_was_never_delivered_returns_before_the_next_gradient() -> None:
    momentum, whole = momentum_of(), momentum_of()
    for seed in range(2):
        momentum.add_gradients(weights(seed), [1.0, 1.0])
        whole.add_gradients(weights(seed), [1.0, 1.0])
        if seed == 0:
            momentum.take(7)
    assert torch.equal(momentum.coefficients, whole.coefficients)


@pytest.mark.parametrize("local_step", ["gradient", "adamw"])
def test_cleared_it_is_as_new(local_step: LocalStep) -> None:
    momentum, new = momentum_of(local_step), momentum_of(local_step)
    momentum.add_gradients(weights(), [1.0, 1.0])
    momentum.take(1)
    momentum.clear()
    momentum.give_back()
    for one in (momentum, new):
        one.add_gradients(weights(3), [1.0, 1.0])
    assert torch.equal(momentum.coefficients, new.coefficients)
