from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from distro_fed.clients.optimizer_store import OptimizerStore
from distro_fed.clients.optimizers import make_optimizers
from distro_fed.clients.train_locally import train_locally
from distro_fed.data.batches import batch_at
from distro_fed.settings import TrainingSettings
from tests.clients.test_train_locally import EXAMPLES
from tests.tiny import tiny_llama

OPTIMIZERS = {"adamw": {}, "sgd": {"momentum": 0.9}, "muon": {"momentum": 0.95}, "sgd without momentum": {}}


def train(folder: Path | None, optim: str, rounds: int, steps: int, names: str = "") -> torch.Tensor:
    """Values after so many rounds of so many steps, from the same start."""
    model = tiny_llama()
    settings = TrainingSettings(
        learning_rate=1e-2, local_steps=steps, lr_scheduler_type="constant", optim=optim.split()[0],
        **OPTIMIZERS[optim],  # type: ignore[arg-type]
    )  # fmt: skip
    for number in range(1, rounds + 1):
        train_locally(
            model, {name: one for name, one in model.named_parameters() if names in name},
            lambda number: batch_at(EXAMPLES, 0, number, 4), first_step=(number - 1) * steps, total_steps=40,
            settings=settings, store=None if folder is None else OptimizerStore(folder, number),
        )  # fmt: skip
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_short_rounds_with_kept_state_are_one_long_round(optim: str, tmp_path: Path) -> None:
    long = train(None, optim, 1, 6)
    assert torch.equal(train(tmp_path, optim, 3, 2), long)
    assert torch.equal(train(None, optim, 3, 2), long) == (optim == "sgd without momentum")


def test_the_last_two_rounds_are_kept(tmp_path: Path) -> None:
    train(tmp_path, "adamw", 4, 1)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["00000003.safetensors", "00000004.safetensors"]


def fresh(values: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    return make_optimizers(nn.Module(), list(values.values()), TrainingSettings(learning_rate=1e-2))[0]


def stepped(names: str, shape: tuple[int, ...] = (2, 3)) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
    """Parameters and an optimizer that has made a step."""
    values = {name: nn.Parameter(torch.ones(shape)) for name in names}
    optimizer = fresh(values)
    for number, one in enumerate(values.values(), start=1):
        one.grad = torch.full(shape, float(number))
    optimizer.step()
    return values, optimizer


def test_what_a_round_does_not_train_is_kept_for_one_that_does(tmp_path: Path) -> None:
    """Alternating factors: A in one round, B in the next, A again."""
    a, optimizer = stepped("a")
    OptimizerStore(tmp_path, 1).save([optimizer], a)
    b, other = stepped("b")
    OptimizerStore(tmp_path, 2).load([other], b)
    OptimizerStore(tmp_path, 2).save([other], b)
    again = fresh(a)
    OptimizerStore(tmp_path, 3).load([again], a)
    assert torch.equal(again.state[a["a"]]["exp_avg"], optimizer.state[a["a"]]["exp_avg"])
    assert float(again.state[a["a"]]["step"]) == 1


def test_a_round_that_is_done_again_starts_as_it_did(tmp_path: Path) -> None:
    values, optimizer = stepped("a")
    OptimizerStore(tmp_path, 4).save([optimizer], values)
    before = optimizer.state[values["a"]]["exp_avg"].clone()
    optimizer.step()
    OptimizerStore(tmp_path, 5).save([optimizer], values)
    again = fresh(values)
    OptimizerStore(tmp_path, 5).load([again], values)
    assert torch.equal(again.state[values["a"]]["exp_avg"], before)


def test_a_state_that_lacks_something_is_not_used(tmp_path: Path) -> None:
    values, optimizer = stepped("ab")
    del optimizer.state[values["b"]]["step"]
    OptimizerStore(tmp_path, 1).save([optimizer], values)
    again = fresh(values)
    OptimizerStore(tmp_path, 2).load([again], values)
    assert list(again.state) == [values["a"]]


@pytest.mark.parametrize("damage", ["shape", "cut", "nan"])
def test_a_state_that_does_not_fit_is_not_used(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values, optimizer = stepped("ab")
    if damage == "nan":
        optimizer.state[values["b"]]["exp_avg"][0, 0] = torch.nan
    OptimizerStore(tmp_path, 1).save([optimizer], values)
    if damage == "cut":
        path = tmp_path / "00000001.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    others = {
        "a": nn.Parameter(torch.ones(2, 3)),
        "b": nn.Parameter(torch.ones((3, 2) if damage == "shape" else (2, 3))),
    }
    again = fresh(others)
    OptimizerStore(tmp_path, 2).load([again], others)
    assert not again.state
    assert "is not used" in caplog.text


def test_a_full_disk_costs_the_state_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    values, optimizer = stepped("a")
    OptimizerStore(tmp_path / "file" / "folder", 1).save([optimizer], values)
    assert "cannot be kept" in caplog.text
