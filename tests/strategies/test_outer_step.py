from __future__ import annotations

import pytest
import torch
from torch import nn

from distro_fed.strategies.outer_step import OuterStep

ROUNDS = [torch.randn(40, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]


@pytest.mark.parametrize("learning_rate", [1.0, 0.7])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [True, False])
def test_step_by_step_like_sgd_of_torch(learning_rate: float, momentum: float, nesterov: bool) -> None:
    """The outer gradient of DiLoCo is the negative of the mean change."""
    model = nn.Parameter(torch.zeros(40))
    reference = torch.optim.SGD([model], lr=learning_rate, momentum=momentum, nesterov=nesterov and momentum > 0)
    outer, replica = OuterStep(learning_rate, momentum, nesterov), torch.zeros(40)
    for mean in ROUNDS:
        model.grad = -mean
        reference.step()
        replica += outer.take_(mean.clone())
        torch.testing.assert_close(replica, model.detach(), rtol=1e-5, atol=1e-5)


def test_by_default_the_mean_is_applied_as_it_is() -> None:
    outer = OuterStep()
    assert all(torch.equal(outer.take_(mean.clone()), mean) for mean in ROUNDS)


def test_after_a_reset_there_is_no_momentum() -> None:
    outer = OuterStep(1.0, 0.9)
    first = outer.take_(ROUNDS[0].clone())
    outer.take_(torch.full((40,), 1e30))
    outer.reset()
    assert torch.equal(outer.take_(ROUNDS[0].clone()), first)
