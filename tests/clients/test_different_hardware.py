"""Members whose machines differ, in one federation: the same replica, and updates that mean the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import nn

from distro_fed.clients import make_client_app
from distro_fed.errors import QuantizationUnavailable
from distro_fed.model import base
from distro_fed.model.base import load_base_model
from distro_fed.model.configured import load_trainable
from distro_fed.settings import RunSettings
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.server import strategy_from_settings
from distro_fed.transport.local_grid import LocalGrid
from tests.tiny import tiny_model_folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hardware")
    tiny_model_folder(root / "model")
    rows = [{"prompt": f"{index % 5}:", "completion": f" answer {index % 5}"} for index in range(24)]
    (root / "data").mkdir()
    for split, part in (("train", rows), ("test", rows[:5])):
        (root / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return root


def federate(
    place: Path, *nodes: dict[str, Any], rounds: int = 1, seen: list[Message] | None = None, **options: Any
) -> DistroStrategy:
    config = {
        "base-model": str(place / "model"), "num-server-rounds": rounds, "local-steps": 2, "max-length": 32,
        "learning-rate": 0.1, "optim": "sgd", "compressor": "dense", "min-train-nodes": 1, "min-available-nodes": 1,
        **{key.replace("_", "-"): value for key, value in options.items()},
    }  # fmt: skip
    settings = RunSettings.from_run_config(config)
    loaded = load_trainable(settings)
    strategy = strategy_from_settings(settings, loaded.base_digest)
    strategy.round_timeout = 2.0
    data = {"data": str(place / "data")}
    configs = [{**data, "name": f"member-{index}", **node} for index, node in enumerate(nodes)]

    def look(reply: Message, node_id: int) -> Message:
        if seen is not None:
            seen.append(reply)
        return reply

    grid = LocalGrid(make_client_app(), len(nodes), run_config=config, node_configs=configs, tamper=look)
    strategy.start(grid, loaded.trainable, rounds)
    assert not any(item.left_out for item in strategy.progress.history())
    return strategy


def moved(place: Path, node: dict[str, Any], **options: Any) -> torch.Tensor:
    """What one member's training did to the model."""
    strategy = federate(place, node, **options)
    start = load_trainable(RunSettings.from_run_config({"base-model": str(place / "model"), **mode_of(options)}))
    return strategy.replica.values - start.trainable.read()


def mode_of(options: dict[str, Any]) -> dict[str, Any]:
    return {"mode": options.get("mode", "lora")}


HALVES = {"per-device-train-batch-size": 2, "gradient-accumulation-steps": 2}


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_cut_batches_and_checkpoints_give_the_same_update(mode: str, place: Path) -> None:
    whole = moved(place, {}, mode=mode)
    scale = float(whole.abs().max())
    assert scale > 1e-3
    for node in (HALVES, {"gradient-checkpointing": True}):
        torch.testing.assert_close(moved(place, node, mode=mode), whole, rtol=0, atol=1e-4 * scale)
    rough = moved(place, {"bf16": True}, mode=mode)
    assert not torch.equal(rough, whole)
    assert float(torch.cosine_similarity(rough, whole, dim=0)) > 0.99


def test_members_of_different_machines_train_together(place: Path, tmp_path: Path) -> None:
    nodes: list[dict[str, Any]] = [
        {}, HALVES, {"per-device-train-batch-size": 3, "threads": 1}, {"gradient-checkpointing": True, "bf16": True},
        {"dtype": "bfloat16"},
    ]  # fmt: skip
    nodes = [{**node, "state-dir": str(tmp_path / str(index)), "simulation": False} for index, node in enumerate(nodes)]
    strategy = federate(place, *nodes, rounds=3, compressor="quantized", bits=4, learning_rate=0.5)
    assert strategy.replica.version == 3
    before, after = strategy.progress.held_out[0], strategy.progress.held_out[3]
    assert len(after) == 5 and all(after[name] < before[name] for name in before)
    exact = [after[f"member-{index}"] for index in range(3)]
    assert max(exact) - min(exact) < 1e-4  # the same replica: they differ in the batches of the evaluation only
    assert after["member-4"] == pytest.approx(exact[0], abs=0.05)


def test_a_step_of_another_size_is_told(place: Path) -> None:
    seen: list[Message] = []
    federate(place, {}, {"per-device-train-batch-size": 3, "gradient-accumulation-steps": 2}, seen=seen)
    first, second = (reply.content.metric_records["metrics"] for reply in seen[:2])
    assert "examples-per-step" not in first
    assert second["examples-per-step"] == 6


class RoundedLinear(nn.Linear):
    """Stands in for a layer of bitsandbytes: integer weights that are no parameters to train."""

    @classmethod
    def of(cls, layer: nn.Linear) -> RoundedLinear:
        rounded = cls(layer.in_features, layer.out_features, bias=False)
        scale = layer.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        values = (layer.weight.detach() / scale).round().to(torch.int8)
        rounded.weight = nn.Parameter(values, requires_grad=False)
        rounded.scale = scale
        return rounded

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.weight * self.scale)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Loads a model with :class:`RoundedLinear` where bitsandbytes would be asked."""
    from transformers import AutoModelForCausalLM

    asked: list[tuple[str, str, str]] = []
    original = AutoModelForCausalLM.from_pretrained

    def load(folder: Path, *, few_bits: bool = False, **options: Any) -> Any:
        model, info = original(folder, **options)
        if few_bits:
            for name, layer in list(model.model.layers.named_modules()):
                if isinstance(layer, nn.Linear):
                    model.model.layers.set_submodule(name, RoundedLinear.of(layer))
        return model, info

    def loading(quantization: str, dtype: str, device: str) -> dict[str, Any]:
        asked.append((quantization, dtype, device))
        return {"few_bits": True}

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load)
    monkeypatch.setattr(base, "quantized_loading", loading)
    return asked


def test_members_with_and_without_a_quantised_base_train_one_adapter(
    place: Path, stand_in: list[tuple[str, str, str]]
) -> None:
    strategy = federate(place, {}, {"quantization": "8bit", "device": "cpu"}, rounds=2, learning_rate=0.5)
    assert stand_in and set(stand_in) == {("8bit", "float32", "cpu")}
    before, after = strategy.progress.held_out[0], strategy.progress.held_out[2]
    assert after["member-0"] < before["member-0"] and after["member-1"] < before["member-1"]
    assert before["member-0"] != before["member-1"]  # the bases do differ


def test_the_server_holds_the_base_as_it_is(place: Path, stand_in: list[tuple[str, str, str]]) -> None:
    federate(place, {}, quantization="8bit")
    assert set(stand_in) == {("8bit", "float32", "cpu")} and len(stand_in) == 1  # by the member


def test_a_machine_without_the_library_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(QuantizationUnavailable, match=r"'4bit' cannot .*device cpu.*bitsandbytes is not inst.*'none'"):
        load_base_model(str(place / "model"), quantization="4bit")


def test_a_machine_that_cannot_run_it_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    def refuse(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("None of the available devices is supported")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    monkeypatch.setattr(base, "quantized_loading", lambda *arguments: {"quantization_config": None})
    with pytest.raises(QuantizationUnavailable, match="None of the available devices"):
        load_base_model(str(place / "model"), quantization="8bit")
