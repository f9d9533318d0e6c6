"""Tensors that no member moves for a while, or ever, under common scales."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from distro_fed.clients import RoundInfo, TrainResult
from distro_fed.compression import make_compressor
from distro_fed.strategies.common_scales import ScaleRule
from tests import federation
from tests.strategies.secure_members import Members
from tests.strategies.whole_pipeline import lowered, write_task


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


def late_train(model: nn.Module, info: RoundInfo) -> TrainResult:
    """The first bias moves from the second round on, as the A of LoRA does, and the second one never."""
    for name, parameter in model.named_parameters():
        if name != "1.bias" and (name != "0.bias" or info.round > 1):
            parameter.data += 0.01
    return TrainResult(num_examples=1, loss=1.0)


@pytest.mark.parametrize("initial", ["measured", 0.02])
@pytest.mark.parametrize("bits", [1, 8])
def test_a_tensor_that_moves_late_is_not_lost_and_one_that_never_does_stays(
    members: Members, initial: float | str, bits: int
) -> None:
    replicas: dict[str, list[torch.Tensor]] = {"0.bias": [], "1.bias": []}

    def train(model: nn.Module, info: RoundInfo) -> TrainResult:
        if federation.partition(info) == 0:
            for name, parameter in model.named_parameters():
                if name in replicas:
                    replicas[name].append(parameter.detach().clone())
        return late_train(model, info)

    rule = {"scale_rule": ScaleRule(initial=initial)}
    for run in (federation.run, members.run):
        run(compressor=make_compressor("quantized", bits=bits), train=train, rounds=3, strategy=rule)
        late, never = (torch.stack(replicas[name]) for name in replicas)
        torch.testing.assert_close(late[2] - late[1], torch.full((5,), 0.01), rtol=0.03, atol=0)
        assert torch.equal(never[2], never[1])
        if initial == "measured":
            assert torch.equal(never[1], never[0]) and torch.equal(late[1], late[0])
        for seen in replicas.values():
            seen.clear()


def test_one_step_of_lora_a_round_learns_as_well_as_with_own_scales(members: Members, tmp_path: Path) -> None:
    """In the first round all of A stays, and members send coins for it."""
    task, node = write_task(tmp_path)
    rounds = 10
    preset = {**task, "preset": "secure", "local-steps": 1, "learning-rate": 1e-2, "num-server-rounds": rounds}
    nodes = [{**node, "name": own.name} for own in members.folders]
    own = lowered(
        preset | {"preset": "lora-default", "peft.r": 1, "peft.target-modules": "gate_proj,up_proj,down_proj"},
        [{**node, "state-dir": str(tmp_path / "own" / str(node["name"]))} for node in nodes], rounds,
    )  # fmt: skip
    secure = lowered(
        preset | {"secure-folder": str(members.folders[0])},
        [{**node, "state-dir": str(tmp_path / "secure" / str(node["name"])), "secure-folder": str(folder)}
         for node, folder in zip(nodes, members.folders, strict=True)], rounds,
    )  # fmt: skip
    assert own > 0.3
    assert secure > 0.95 * own
