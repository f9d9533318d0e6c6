"""What the server makes of the mean of a round."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distro_fed.clients import RoundInfo, TrainResult
from distro_fed.compression import make_compressor
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.run_state import RunState
from tests.federation import make_model, run


def prepared(**options: object) -> tuple[DistroStrategy, RunState]:
    server = DistroStrategy(**{"compressor": make_compressor("dense"), **options})  # type: ignore[arg-type]
    server.prepare(make_model(), run_id=1, num_rounds=3)
    return server, server.run_state


def means(count: int) -> list[torch.Tensor]:
    size = make_model().layout.numel
    return [torch.randn(size, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]


def test_a_federation_with_the_outer_optimizer_of_diloco() -> None:
    """Members that move every weight by 0.1: the model moves as SGD of torch does on a gradient of -0.1."""

    def train(model: nn.Module, info: RoundInfo) -> TrainResult:
        for parameter in model.parameters():
            parameter.data += 0.1
        return TrainResult(1, 1.0)

    server, _ = run(
        rounds=5, nodes=2, train=train, strategy={"outer_learning_rate": 0.7, "outer_momentum": 0.9}
    )  # fmt: skip
    model = nn.Parameter(make_model().read())
    reference = torch.optim.SGD([model], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(5):
        model.grad = torch.full_like(model, -0.1)
        reference.step()
    torch.testing.assert_close(server.replica.values, model.detach(), rtol=0, atol=1e-5)
    # what the last message brought to the members is the server's replica
    expected = float(server.replica.values.square().sum())
    assert [round(value / expected, 4) for value in server.progress.held_out[5].values()] == [1.0, 1.0]


def test_the_outer_step_comes_before_the_residual_and_the_coding() -> None:
    """``step = 0.5 mean + residual; send Q(step); residual = step - what was sent``."""
    coder = make_compressor("topk", density=0.2)
    server, state = prepared(compressor=coder, outer_learning_rate=0.5, server_residual=True)
    expected, residual = make_model().read(), torch.zeros(make_model().layout.numel)
    for number, mean in enumerate(means(4), 1):
        step = 0.5 * mean + residual
        sent = torch.zeros_like(step)
        coder.decode(coder.encode(step, make_model().layout, 0), make_model().layout).add_to(sent)
        residual = step - sent
        expected += sent
        assert state.advance(number, mean.clone()) is not None
        torch.testing.assert_close(server.replica.values, expected, rtol=0, atol=1e-5)


def test_a_mean_that_cannot_be_coded_costs_the_round_and_the_momentum() -> None:
    server, state = prepared(outer_momentum=0.9)
    first, second, third = means(3)
    state.advance(1, first.clone())
    before = server.replica.values.clone()
    assert state.advance(2, torch.full_like(second, 1.8e19 * 1.1)) is None
    assert torch.equal(server.replica.values, before)
    assert state.advance(3, third.clone()) is not None
    torch.testing.assert_close(server.replica.values, before + 1.9 * third, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("compressor", "options"), [("dense", {}), ("quantized", {}), ("tracking", {"rank": 1})])
def test_however_large_the_means_the_model_can_be_sent(compressor: str, options: dict[str, int]) -> None:
    """Finite updates that add up to what no keyframe holds: the rounds that they spoil are skipped, and no other."""
    server, state = prepared(compressor=make_compressor(compressor, **options))
    agreement = server.replica.agreement
    advanced = []
    for number, size in enumerate([1.0, 1e6, 1.7e19, 1e18, 1e7, 1e7] * 2, 1):
        space = agreement.space(server.replica.key(number))
        advanced.append(state.advance(number, torch.full((space.numel,), size)) is not None)
        server.replica.keyframe(number)
    assert advanced[:6] == [True, True, False, False, True, True]


def test_a_second_run_starts_without_momentum() -> None:
    server, state = prepared(outer_momentum=0.9)
    state.advance(1, means(1)[0].clone())
    server.prepare(make_model(), run_id=2, num_rounds=1)
    before, (mean,) = server.replica.values.clone(), means(1)
    server.run_state.advance(1, mean.clone())
    torch.testing.assert_close(server.replica.values, before + 1.9 * mean, rtol=0, atol=1e-5)
