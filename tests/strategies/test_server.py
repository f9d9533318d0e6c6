"""The ready server app: what it leaves behind, at a good end and at a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord

from distro_fed.clients import make_client_app
from distro_fed.errors import CheckpointError, FederationError, SettingsError
from distro_fed.reporting.events import read_events
from distro_fed.reporting.report_file import read_report
from distro_fed.settings import RunSettings
from distro_fed.strategies.server import run_server, strategy_from_settings
from distro_fed.transport.local_grid import LocalGrid
from tests.tiny import tiny_model_folder


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    tiny_model_folder(tmp_path / "tiny")
    for name in ("bank", "clinic"):
        folder = tmp_path / "organisations" / name
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            rows = [{"text": f"{name} {index % 3} says something"} for index in range(8)]
            (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {
        "base-model": str(tmp_path / "tiny"), "data-folder": str(tmp_path / "organisations"),
        "run-dir": str(tmp_path / "run"), "state-dir": "auto", "num-server-rounds": 2, "local-steps": 2,
        "max-length": 32, "learning-rate": 1e-2, "round-timeout": 5.0,
    }  # fmt: skip


def serve(
    config: dict[str, Any],
    drop: Callable[[Message, int], bool] | None = None,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    run_id: int = 1,
) -> None:
    grid = LocalGrid(make_client_app(), 2, run_config=config, drop=drop, run_id=run_id)
    run_server(grid, RunSettings.from_run_config(config), evaluate_fn)


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_a_run_leaves_model_report_and_events(config: dict[str, Any], tmp_path: Path, mode: str) -> None:
    config["mode"] = mode
    serve(config)
    report = read_report(tmp_path / "run" / "report.json")
    assert report.clients == ["bank", "clinic"]
    assert report.loss_before.mean is not None
    assert report.history[-1].held_out_loss.mean == report.loss_after.mean
    assert report.ratio_fedavg_full_bf16 is not None
    events = [event["event"] for event in read_events(tmp_path / "run" / "events.jsonl")[0]]
    assert events[0] == "run_started"
    assert events[-1] == "run_finished"
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "says something" not in card
    assert "| bank |" in card.replace("  ", " ")
    if mode == "full":
        from transformers import AutoModelForCausalLM

        tuned, base = (
            AutoModelForCausalLM.from_pretrained(folder).model.layers[0].mlp.up_proj.weight
            for folder in (tmp_path / "run" / "model", tmp_path / "tiny")
        )
        assert not torch.equal(tuned, base)


def test_settings_reach_the_strategy() -> None:
    settings = {
        "compressor": "dct-topk", "density": 1 / 16, "value-bits": 2, "aggregation": "contributors",
        "outer-learning-rate": 0.7, "outer-momentum": 0.9, "outer-nesterov": False,
    }  # fmt: skip
    strategy = strategy_from_settings(RunSettings.from_run_config(settings))
    assert strategy.compressor.describe() == "dct-topk density=1/16 chunk=64 value-bits=2"
    assert strategy.aggregation == "contributors"
    assert (strategy.outer_learning_rate, strategy.outer_momentum, strategy.outer_nesterov) == (0.7, 0.9, False)


def test_sparseloco_and_muon_in_one_run(config: dict[str, Any], tmp_path: Path) -> None:
    """Selection by chunk, two bits, decayed error feedback and a mean over contributors, after Muon at the members."""
    config |= {
        "mode": "full", "compressor": "topk", "density": 1 / 16, "selection": "chunk", "value-bits": 2,
        "error-feedback": True, "error-feedback-decay": 0.95, "aggregation": "contributors", "optim": "muon",
        "momentum": 0.95, "num-server-rounds": 3,
    }  # fmt: skip
    serve(config)
    report = read_report(tmp_path / "run" / "report.json")
    assert "per 64x64 chunk value-bits=2" in report.compressor
    assert report.loss_after.mean < report.loss_before.mean - 0.1


def test_a_run_in_which_nothing_worked_ends_with_the_reasons(config: dict[str, Any], tmp_path: Path) -> None:
    config["data-folder"] = str(tmp_path / "nothing here")
    with pytest.raises(FederationError, match=r"none of 2 rounds had enough valid replies; .*data-not-found"):
        serve(config)
    assert not (tmp_path / "run" / "model").exists()
    assert read_events(tmp_path / "run" / "events.jsonl")[0][-1]["event"] == "run_failed"


def test_what_a_broken_run_has_reached_is_saved(config: dict[str, Any], tmp_path: Path) -> None:
    def breaks(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round_ == 1:
            raise ConnectionError("the evaluation service is away")
        return None

    with pytest.raises(ConnectionError):
        serve(config, evaluate_fn=breaks)
    assert (tmp_path / "run" / "model-unfinished" / "adapter_model.safetensors").is_file()


def test_a_run_that_broke_off_is_gone_on_with_in_its_folder(config: dict[str, Any], tmp_path: Path) -> None:
    """Another Flower run ends at the same adapter, and its report is about both."""
    from safetensors.torch import load_file

    def breaks(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round_ == 2:
            raise ConnectionError("the evaluation service is away")
        return None

    config |= {"num-server-rounds": 3, "error-feedback": True}
    with pytest.raises(ConnectionError):
        serve(config, evaluate_fn=breaks)
    run = tmp_path / "run"
    resume = config | {"resume-from-checkpoint": str(run)}
    with pytest.raises(CheckpointError, match=r"other settings: learning-rate: 0.01 then, 0.02 now"):
        serve(resume | {"learning-rate": 2e-2}, run_id=7)
    serve(resume, run_id=8)
    whole = config | {"run-dir": str(tmp_path / "whole")}
    serve(whole, run_id=9)
    mine, theirs = (load_file(tmp_path / name / "model" / "adapter_model.safetensors") for name in ("run", "whole"))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    report, other = read_report(run / "report.json"), read_report(tmp_path / "whole" / "report.json")
    assert report.resumed == 1
    assert report.rounds == 3
    assert report.loss_after == other.loss_after
    assert report.loss_before == other.loss_before
    assert not (run / "model-unfinished").exists()
    events = [event["event"] for event in read_events(run / "events.jsonl")[0]]
    assert [name for name in events if name.startswith("r") and name not in ("reply", "round_started")] == [
        "run_started", "round_finished", "round_finished", "run_failed", "resumed", "round_finished", "run_finished",
    ]  # fmt: skip


def test_without_save_rounds_nothing_is_saved(config: dict[str, Any], tmp_path: Path) -> None:
    serve(config | {"save-rounds": 0, "num-server-rounds": 1})
    assert not (tmp_path / "run" / "checkpoint").exists()
    with pytest.raises(CheckpointError, match="save-rounds above 0"):
        serve(config | {"resume-from-checkpoint": str(tmp_path / "run")})


def test_no_run_overwrites_another(config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(config)
    with pytest.raises(SettingsError, match="holds another run"):
        serve(config)
    monkeypatch.chdir(tmp_path)
    config |= {"run-dir": "", "run-name": "mine", "num-server-rounds": 1, "state-dir": ""}
    serve(config)
    serve(config)
    assert (tmp_path / "runs" / "mine-2" / "report.json").is_file()
