from __future__ import annotations

import pytest
import torch

from distro_fed.clients.train_locally import train_locally
from distro_fed.data.batches import batch_at
from distro_fed.data.tokenize import Example
from distro_fed.errors import TrainingError
from distro_fed.settings import TrainingSettings
from tests.tiny import tiny_llama

EXAMPLES = [Example([7 + i, 20 + i, 30, 40 + i % 3], [-100, 20 + i, 30, 40 + i % 3]) for i in range(12)]


def settings(**changes: object) -> TrainingSettings:
    return TrainingSettings(**{"learning_rate": 1e-2, "local_steps": 4, "lr_scheduler_type": "constant", **changes})  # type: ignore[arg-type]


def train(config: TrainingSettings, batch_size: int = 4, first_step: int = 0) -> tuple[float, torch.Tensor]:
    model = tiny_llama()
    outcome = train_locally(
        model, dict(model.named_parameters()), lambda number: batch_at(EXAMPLES, 0, number, batch_size),
        first_step=first_step, total_steps=40, settings=config,
    )  # fmt: skip
    return outcome.loss, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    "options",
    [{}, {"optim": "sgd", "momentum": 0.9, "learning_rate": 0.3}, {"optim": "muon", "momentum": 0.95}],
    ids=lambda options: options.get("optim", "adamw"),
)
def test_loss_falls(options: dict[str, object]) -> None:
    first, _ = train(settings(local_steps=1, **options))
    last, _ = train(settings(local_steps=30, **options))
    assert last < first - 0.5


@pytest.mark.parametrize("optim", ["adamw", "sgd", "muon"])
def test_every_parameter_is_trained(optim: str) -> None:
    model, before = tiny_llama(), dict(tiny_llama().named_parameters())
    train_locally(
        model, dict(model.named_parameters()), lambda number: batch_at(EXAMPLES, 0, number, 4),
        first_step=0, total_steps=40, settings=settings(optim=optim),
    )  # fmt: skip
    assert [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])] == []


def test_accumulated_micro_batches_equal_one_batch() -> None:
    _, one = train(settings(max_grad_norm=0), batch_size=4)
    _, two = train(settings(max_grad_norm=0, gradient_accumulation_steps=2), batch_size=2)
    torch.testing.assert_close(one, two, rtol=0, atol=2e-4)


def test_same_start_same_bits() -> None:
    assert torch.equal(train(settings())[1], train(settings())[1])


def test_a_loss_that_is_not_finite_stops_with_the_rate_and_the_way_out() -> None:
    model = tiny_llama()
    next(model.parameters()).data.fill_(float("inf"))
    with pytest.raises(TrainingError, match="lower learning-rate"):
        train_locally(
            model, dict(model.named_parameters()), lambda number: batch_at(EXAMPLES, 0, number, 2),
            first_step=0, total_steps=4, settings=settings(),
        )  # fmt: skip
