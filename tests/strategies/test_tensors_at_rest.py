"""Tensors that no member moves for a while, or ever, under common scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from distro_fed.clients import RoundInfo, TrainResult, make_client_app
from distro_fed.compression import make_compressor
from distro_fed.model.configured import load_trainable
from distro_fed.settings import RunSettings
from distro_fed.strategies.common_scales import ScaleRule
from distro_fed.strategies.server import strategy_from_settings
from distro_fed.transport.local_grid import LocalGrid
from tests import federation
from tests.strategies.secure_members import Members
from tests.tiny import tiny_model_folder


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


def lowered(config: dict[str, Any], nodes: list[dict[str, Any]], rounds: int) -> float:
    """How far a run of the tiny model brings the mean held-out loss down."""
    settings = RunSettings.from_run_config(config)
    loaded = load_trainable(settings)
    strategy = strategy_from_settings(settings, loaded.base_digest)
    grid = LocalGrid(make_client_app(), len(nodes), run_config=config, node_configs=nodes)
    strategy.start(grid, loaded.trainable, rounds)
    assert strategy.replica.version == rounds
    before, after = (list(strategy.progress.held_out[round_].values()) for round_ in (0, rounds))
    return sum(before) / len(before) - sum(after) / len(after)


def test_one_step_of_lora_a_round_learns_as_well_as_with_own_scales(members: Members, tmp_path: Path) -> None:
    """In the first round all of A stays, and members send coins for it."""
    tiny_model_folder(tmp_path / "model")
    (tmp_path / "data").mkdir()
    rows = [json.dumps({"prompt": f"{index % 5}:", "completion": f" answer {index % 5}"}) for index in range(24)]
    for split, part in (("train", rows), ("test", rows[:5])):
        (tmp_path / "data" / f"{split}.jsonl").write_text("\n".join(part))
    rounds = 10
    preset = {
        "preset": "secure", "base-model": str(tmp_path / "model"), "local-steps": 1, "learning-rate": 1e-2,
        "max-length": 32, "num-server-rounds": rounds, "round-timeout": 10.0,
    }  # fmt: skip
    nodes = [{"data": str(tmp_path / "data"), "name": own.name, "simulation": False} for own in members.folders]
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
