"""The SDK door: functions, a Trainer, and the ready app, in an in-process federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from torch import nn

from distro_fed.clients import PrivateClient, RoundInfo, TrainResult, make_client_app
from distro_fed.model.configured import load_trainable
from distro_fed.model.trainable import trainable_full
from distro_fed.settings import RunSettings
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.server import strategy_from_settings
from distro_fed.transport.local_grid import LocalGrid
from tests.federation import make_model, shift_train
from tests.tiny import tiny_llama, tiny_model_folder


@pytest.fixture(scope="session")
def organisations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("organisations")
    for name in ("clinic", "bank"):
        (root / name).mkdir()
        for split, count in (("train", 24), ("test", 6)):
            rows = [{"prompt": f"{name} {index % 5}:", "completion": f" answer {index % 5}"} for index in range(count)]
            (root / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model_folder(folder)
    return folder


def federate(config: dict[str, Any], app: Any = None, nodes: int = 2) -> DistroStrategy:
    settings = RunSettings.from_run_config(config)
    loaded = load_trainable(settings)
    strategy = strategy_from_settings(settings, loaded.base_digest)
    strategy.round_timeout = 2.0
    grid = LocalGrid(app or make_client_app(), nodes, run_config=config)
    strategy.start(grid, loaded.trainable, settings.federation.num_server_rounds)
    return strategy


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "lora"},
        {"mode": "lora", "peft.type": "IA3", "peft.target-modules": "k_proj,v_proj,down_proj",
         "peft.feedforward-modules": "down_proj", "bits": 8},
        {"mode": "lora", "compressor": "topk", "density": 0.1, "error-feedback": True, "server-residual": True},
        {"mode": "lora", "compressor": "quantized", "error-feedback": True, "server-residual": True},
        {"mode": "lora", "lora-factors": "b"},
        {"mode": "lora", "lora-factors": "alternating"},
        {"mode": "lora", "lora-factors": "alternating", "error-feedback": True, "compressor": "topk", "density": 0.1},
        {"mode": "lora", "lora-factors": "core", "learning-rate": 0.1},
        {"mode": "full"},
        {"mode": "full", "compressor": "subspace", "rank": 4, "bits": 4},
        {"mode": "full", "compressor": "subspace", "rank": 2, "final-rank": 6, "basis-rounds": 2},
        {"mode": "full", "compressor": "lowrank", "rank": 4, "error-feedback": True, "learning-rate": 1e-2},
        {"mode": "full", "compressor": "lowrank", "rank": 4, "learning-rate": 1e-2},
        {"mode": "full", "compressor": "tracking", "error-feedback": True, "server-residual": True},
        {"mode": "full", "compressor": "tracking-topk", "value-bits": 2, "error-feedback": True},
        {"mode": "full", "compressor": "tracking", "rank": 2, "trained-modules": "up_proj,down_proj"},
        {"mode": "full", "compressor": "dct-topk", "density": 0.05, "learning-rate": 1e-2},
        {"mode": "full", "compressor": "dense", "dtype": "bfloat16", "dense-dtype": "bfloat16"},
    ],
    ids=lambda options: " ".join(f"{value}" for value in options.values()),
)  # fmt: skip
def test_every_pipeline_learns_on_every_members_held_out_text(
    options: dict[str, Any], organisations: Path, model_folder: Path, tmp_path: Path
) -> None:
    config = {
        "base-model": str(model_folder), "data-folder": str(organisations), "state-dir": str(tmp_path),
        "num-server-rounds": 5, "local-steps": 6, "max-length": 48, "learning-rate": 2e-2, **options,
    }  # fmt: skip
    strategy = federate(config)
    before, after = strategy.progress.held_out[0], strategy.progress.held_out[5]
    assert set(before) == {"clinic", "bank"}
    assert all(after[name] < before[name] - 0.05 for name in before), (before, after)
    assert strategy.replica.version == 5


def test_state_of_a_run_is_that_of_one_process(organisations: Path, model_folder: Path, tmp_path: Path) -> None:
    """A new client process for every message, as in a deployment, ends at the same bits."""
    config = {
        "base-model": str(model_folder), "data-folder": str(organisations), "num-server-rounds": 3,
        "local-steps": 2, "max-length": 48, "error-feedback": True,
    }  # fmt: skip

    def fresh(message: Message, context: Context) -> Message:
        return make_client_app()(message, context)

    one = federate({**config, "state-dir": str(tmp_path / "one")})
    many = federate({**config, "state-dir": str(tmp_path / "many")}, app=fresh)
    assert torch.equal(one.replica.values, many.replica.values)


def test_a_hundred_virtual_clients_share_model_and_updates(tmp_path: Path) -> None:
    loads: list[int] = []

    def load() -> Any:
        loads.append(1)
        return make_model(width=200)

    app = PrivateClient(load, shift_train, state_dir=str(tmp_path)).app()
    grid = LocalGrid(app, 100, run_config={"compressor": "quantized"})
    strategy = DistroStrategy(round_timeout=5, fraction_evaluate=0.0)
    strategy.start(grid, make_model(width=200), 3)
    assert len(loads) == 1
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "egress"]
    assert len(files) == 2  # the two updates that members were sent
    assert len(list((tmp_path / "egress").iterdir())) == 100  # and what each of them has sent
    assert strategy.replica.version == 3


def test_a_trainer_takes_part_in_ten_lines(organisations: Path, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    ids = torch.arange(12).repeat(8, 1)
    rows = [{"input_ids": row, "labels": row} for row in ids]

    def make_trainer() -> Trainer:
        arguments = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=4, learning_rate=1e-2, report_to="none", save_strategy="no",
            disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        return Trainer(tiny_llama(), arguments, train_dataset=rows, eval_dataset=rows)

    client = PrivateClient.from_trainer(make_trainer, name="clinic")
    grid = LocalGrid(client.app(), 1, run_config={"compressor": "quantized", "local-steps": 4})
    strategy = DistroStrategy(min_train_nodes=1, min_available_nodes=1, min_evaluate_nodes=1, round_timeout=5)
    strategy.start(grid, trainable_full(tiny_llama()), 2)
    losses = strategy.progress.held_out
    assert losses[2]["clinic"] < losses[0]["clinic"]
    assert strategy.members.data_shapes["clinic"]["num-examples"] == 8


def test_text_of_an_exception_stays_at_home(caplog: pytest.LogCaptureFixture) -> None:
    replies: list[Message] = []

    def train(model: nn.Module, info: RoundInfo) -> TrainResult:
        raise ValueError("Jane Doe, born 1970, has asthma")

    app = PrivateClient(make_model, train).app()

    def listening(message: Message, context: Context) -> Message:
        replies.append(app(message, context))
        return replies[-1]

    grid = LocalGrid(listening, 1, run_config={"compressor": "quantized"})  # type: ignore[arg-type]
    DistroStrategy(
        min_train_nodes=1, min_available_nodes=1, round_timeout=1, fraction_evaluate=0.0
    ).start(grid, make_model(), 1)  # fmt: skip
    assert len(replies) == 1
    sent = repr(replies[0].content)
    assert "exception ValueError" in sent
    assert "Jane" not in sent
    assert "Jane Doe" in caplog.text  # but here it can be found


def test_wrong_data_is_reported_by_its_code_only(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "orgs" / "clinic").mkdir(parents=True)
    (tmp_path / "orgs" / "clinic" / "train.jsonl").write_text('{"secret column": 1}\n')
    config = {
        "base-model": str(model_folder), "data-folder": str(tmp_path / "orgs"), "num-server-rounds": 1,
        "min-train-nodes": 1, "min-available-nodes": 1,
    }  # fmt: skip
    strategy = federate(config, nodes=1)
    (left_out,) = strategy.progress.history()[0].left_out
    assert left_out.client == "clinic"
    assert "unusable-data" in left_out.reason or "data-not-found" in left_out.reason
    assert "secret" not in left_out.reason


def test_an_app_that_is_pickled_with_every_message_keeps_its_model() -> None:
    """As Flower's simulation does it, by value."""
    from ray import cloudpickle

    client = PrivateClient(make_model, shift_train)
    copies = [cloudpickle.loads(cloudpickle.dumps(client)) for _ in range(2)]
    assert copies[0]._state is copies[1]._state
    pickled = cloudpickle.dumps(client.app())
    for _ in range(2):
        state = cloudpickle.loads(pickled)
        grid = LocalGrid(state, 1, run_config={"compressor": "quantized"}, run_id=5)
        strategy = DistroStrategy(
            min_train_nodes=1, min_available_nodes=1, round_timeout=1, fraction_evaluate=0.0
        )  # fmt: skip
        strategy.start(grid, make_model(), 1)
        assert strategy.replica.version == 1


def test_a_member_whose_evaluation_fails_still_trains() -> None:
    def evaluate(model: nn.Module, info: RoundInfo) -> float:
        raise RuntimeError("no held-out data today")

    app = PrivateClient(make_model, shift_train, evaluate).app()
    strategy = DistroStrategy(round_timeout=1, fraction_evaluate=0.0)
    strategy.start(LocalGrid(app, 2, run_config={"compressor": "quantized"}), make_model(), 2)
    assert strategy.replica.version == 2


def test_what_one_member_does_to_buffers_does_not_reach_the_next() -> None:
    seen: list[float] = []

    def load() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        return trainable_full(model)

    def train(model: Any, info: RoundInfo) -> TrainResult:
        seen.append(float(model[1].running_mean.sum()))
        model[1].running_mean += 1.0
        return shift_train(model, info)

    strategy = DistroStrategy(round_timeout=1, fraction_evaluate=0.0)
    strategy.start(LocalGrid(PrivateClient(load, train).app(), 3, run_config={"compressor": "quantized"}), load(), 2)
    assert seen == [0.0] * 6


def test_a_replaced_parameter_is_refused_and_not_silently_ignored() -> None:
    def train(model: Any, info: RoundInfo) -> TrainResult:
        model[0].weight = nn.Parameter(model[0].weight.data + 1)
        return TrainResult(1, 1.0)

    strategy = DistroStrategy(round_timeout=1, fraction_evaluate=0.0)
    app = PrivateClient(make_model, train).app()
    strategy.start(LocalGrid(app, 2, run_config={"compressor": "quantized"}), make_model(), 1)
    assert {item.reason for item in strategy.progress.history()[0].left_out} == {"the node reports training"}


def test_members_of_the_same_name_keep_their_residuals_apart(tmp_path: Path) -> None:
    app = PrivateClient(make_model, shift_train, name="hospital", state_dir=str(tmp_path)).app()
    grid = LocalGrid(app, 2, run_config={"compressor": "quantized", "error-feedback": True})
    DistroStrategy(round_timeout=1, fraction_evaluate=0.0).start(grid, make_model(), 1)
    assert len(list(tmp_path.rglob("residuals/*"))) == 2


def test_settings_built_by_hand_are_completed() -> None:
    app = PrivateClient(make_model, shift_train, settings=RunSettings()).app()
    strategy = DistroStrategy(round_timeout=1, fraction_evaluate=0.0)
    strategy.start(LocalGrid(app, 2), make_model(), 1)
    assert strategy.replica.version == 1
