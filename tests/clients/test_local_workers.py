"""Two processes of one member: the same update as one process, and an error instead of a hang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from distro_fed.clients import PrivateClient, RoundInfo
from distro_fed.clients.local_workers import LocalGroup, local_group
from distro_fed.errors import SettingsError, TrainingError
from distro_fed.settings import RunSettings
from tests.clients.test_different_hardware import federate
from tests.clients.test_different_hardware import place as place
from tests.federation import make_model, shift_train

HALVES = {"per-device-train-batch-size": 2, "gradient-accumulation-steps": 2}


@dataclass(frozen=True)
class Adding:
    """Adds gradients and numbers as training does; fails where it is told to."""

    fails: str = ""

    def __call__(self, rank: int) -> Callable[[LocalGroup], object]:
        if self.fails == "loading":
            raise ValueError("no such model")
        return self.train

    def train(self, group: LocalGroup) -> tuple[torch.Tensor, torch.Tensor, float]:
        if self.fails == "training" and group.rank == 1:
            raise ValueError("loss is not finite")
        used, unused = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        used.grad = torch.tensor([1.0, 10.0]) * (group.rank + 1)
        if group.rank == 1:
            unused.grad = torch.ones(2)
        group.add_gradients([used, unused])
        assert used.grad is not None and unused.grad is not None
        return used.grad, unused.grad, group.add(float(group.rank), used)


def test_gradients_and_numbers_are_added_and_items_shared() -> None:
    with local_group(2, Adding(), "gloo") as group:
        used, unused, total = Adding().train(group)
    assert (used.tolist(), unused.tolist(), total) == ([3.0, 30.0], [1.0, 1.0], 1.0)
    assert not distributed.is_initialized()
    assert [list(LocalGroup(rank, 2).share(range(5))) for rank in range(2)] == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize(("fails", "message"), [("loading", "while it loaded the model"), ("training", "is lost")])
def test_a_process_that_dies_is_an_error_and_no_hang(fails: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message), local_group(2, Adding(fails), "gloo") as group:
        Adding(fails).train(group)
    assert not distributed.is_initialized()


def test_an_error_of_ones_own_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError), local_group(2, Adding(), "gloo"):
        raise ZeroDivisionError
    assert not distributed.is_initialized()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "full", "compressor": "subspace", "rank": 2, "bits": 8},
        {"mode": "full", "compressor": "tracking", "rank": 2, "bits": 8},
        {"lora_factors": "alternating"},
    ],
    ids=["lora", "subspace", "tracking", "alternating"],
)
def test_two_processes_train_what_one_trains(options: dict[str, Any], place: Path) -> None:
    one, two = (federate(place, {**HALVES, **more}, **options) for more in ({}, {"local-processes": 2}))
    assert one.progress.held_out[1] != one.progress.held_out[0]
    torch.testing.assert_close(two.replica.values, one.replica.values, rtol=1e-4, atol=1e-5)
    assert two.progress.history()[0].train_loss == pytest.approx(one.progress.history()[0].train_loss, rel=1e-5)


def test_training_functions_start_their_processes_by_themselves() -> None:
    app = PrivateClient(make_model, shift_train)
    info = RoundInfo(1, 1, "clinic", RunSettings(), {"local-processes": 2})
    with pytest.raises(SettingsError, match=r"local-processes = 2 is for make_client_app\(\).*accelerate"):
        app._state._task.train(make_model(), None, info)  # type: ignore[arg-type]
