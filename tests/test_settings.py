from __future__ import annotations

import math

import pytest

from distro_fed.errors import SettingsError
from distro_fed.presets import PIPELINES
from distro_fed.settings import RunSettings


def read(**changes: object) -> RunSettings:
    return RunSettings.from_run_config({key.replace("_", "-"): value for key, value in changes.items()})


def test_one_key_switches_the_mode_and_the_rest_follows() -> None:
    lora, full = read(mode="lora"), read(mode="full")
    assert lora.compression.compressor == "quantized"
    assert full.compression.compressor == "subspace"
    assert lora.training.learning_rate > 0
    assert full.training.learning_rate > 0


def test_what_trains_few_values_moves_them_further() -> None:
    assert read(lora_factors="core").training.learning_rate > read().training.learning_rate
    assert read(lora_factors="b").training.learning_rate == read().training.learning_rate


def test_downlink_follows_the_uplink_unless_it_is_given() -> None:
    assert read(bits=3).compression.downlink_bits == 3
    assert read(bits=3, downlink_bits=2).compression.downlink_bits == 2


def test_flat_settings_read_back_to_the_same() -> None:
    settings = RunSettings.from_run_config({"mode": "full", "rank": 4, "peft.r": 3, "learning-rate": 1e-3})
    assert RunSettings.from_run_config(settings.flat()) == settings


def test_an_unknown_key_gets_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match="'learning-rat'; did you mean 'learning-rate'"):
        RunSettings.from_run_config({"learning-rat": 1.0})


def test_keys_of_the_app_are_left_alone() -> None:
    assert RunSettings.from_run_config({"app.colour": "red"}) == RunSettings.from_run_config({})


def test_peft_keys_pass_through() -> None:
    settings = RunSettings.from_run_config({"peft.lora-alpha": 4, "peft.target-modules": "q_proj"})
    assert settings.model.peft == {"lora_alpha": 4, "target_modules": "q_proj"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bits": 9}, "bits = 9; it must be at most 8"),
        ({"density": 1.5}, "density = 1.5"),
        ({"density": math.nan}, "density = nan is not a finite number"),
        ({"local-steps": 0}, "local-steps = 0; it must be at least 1"),
        ({"local-steps": True}, "is a bool; a int is needed"),
        ({"report-to": "tensorbord"}, "report-to = 'tensorbord' does not match none|"),
        ({"report-to": "none,wandb"}, "report-to = 'none,wandb' does not match"),
        ({"metrics-port": 65536}, "metrics-port = 65536; it must be at most 65535"),
        ({"local-steps": 1.5}, "is a float; a int is needed"),
        ({"mode": "lorra"}, "choose one of lora, full"),
        ({"compressor": "subspace", "mode": "lora"}, "needs mode = 'full'"),
        ({"optimizer-state": "kept", "mode": "full"}, "compressor = 'subspace': its coefficients start at 0"),
        ({"mode": "full", "error-feedback": True}, "its basis changes every round"),
        ({"mode": "full", "server-residual": True}, "its basis changes every round"),
        ({"mode": "full", "compressor": "lowrank", "server-residual": True}, "with compressor = 'lowrank': its basis"),
        ({"compressor": "tracking-topk"}, "compressor = 'tracking-topk' trains inside the weight matrices"),
        ({"compressor": "tracking"}, "compressor = 'tracking' trains inside the weight matrices"),
        ({"compressor": "tracking", "mode": "full", "optimizer-state": "kept"}, "compressor = 'tracking': its coeff"),
        ({"trained-modules": " , ", "mode": "full"}, "trained-modules = ' , ' does not match"),
        ({"trained-modules": "q_proj"}, "trained-modules = 'q_proj' with mode = 'lora'"),
        ({"basis-decay": 1.5}, "basis-decay = 1.5; it must be at most 1"),
        ({"lora-factors": "b", "mode": "full"}, "lora-factors = 'b' with mode = 'full'"),
        ({"lora-factors": "core", "peft.type": "VERA"}, "peft.type = 'VERA': it says what of a LoRA pair"),
        ({"lora-factors": "alternating", "outer-momentum": 0.9}, "'alternating' with outer-momentum"),
        ({"lora-factors": "alternating", "compressor": "lowrank"}, "'alternating' with compressor = 'lowrank'"),
        ({"lora-factors": "a"}, "choose one of both, b, alternating, core"),
        ({"basis-rounds": 0}, "basis-rounds = 0; it must be at least 1"),
        ({"optim": "sgd"}, "set learning-rate"),
        ({"optim": "lion"}, "choose one of adamw, sgd, muon"),
        ({"momentum": 1.0}, "momentum = 1.0; it must be at most"),
        ({"selection": "row"}, "choose one of global, chunk"),
        ({"value-bits": 3}, "value-bits = 3; it must be at most 2"),
        ({"error-feedback-decay": 1.5}, "error-feedback-decay = 1.5; it must be at most 1"),
        ({"aggregation": "contributors"}, "compressor = 'quantized', of which every member sends every coefficient"),
        (
            {"aggregation": "contributors", "mode": "full"},
            "or one of the compressors topk, dct-topk, tracking-topk",
        ),
        ({"outer-learning-rate": 0.0}, "outer-learning-rate = 0.0 would never change the model"),
        ({"outer-momentum": 1.0}, "outer-momentum = 1.0; it must be at most"),
        ({"outer-momentum": 0.9, "mode": "full"}, "compressor = 'subspace': its space changes every round"),
        ({"outer-momentum": 0.9, "compressor": "lowrank"}, "compressor = 'lowrank': its space changes every round"),
        ({"scales": "mine"}, "choose one of auto, own, common"),
        ({"scales": "common", "compressor": "topk"}, "scales = 'common' with compressor = 'topk'"),
        ({"scales": "own", "secure-aggregation": True}, "the mean scale times the mean code is not the mean"),
        ({"scales": "common", "initial-scale": "adamw", "optim": "muon"}, "with optim = 'muon'"),
        ({"scales": "common", "initial-scale": "adamw", "compressor": "lowrank"}, "compressor = 'lowrank': a rule for"),
        ({"initial-scale": "0.0"}, "initial-scale = '0.0'; give 'measured', 'adamw' or a number above 0"),
        ({"initial-scale": "-1"}, "initial-scale = '-1'; give"),
        ({"initial-scale": "0e5"}, "initial-scale = '0e5'; give"),
        ({"initial-scale": "1e999"}, "initial-scale = '1e999'; give"),
        ({"initial-scale": "often"}, "initial-scale = 'often'; give"),
    ],
)
def test_bad_values_are_named_with_the_way_out(config: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        RunSettings.from_run_config(config)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        {"optim": "sgd", "momentum": 0.9, "learning-rate": 0.1},
        {"optim": "muon", "momentum": 0.95},
        {"compressor": "topk", "selection": "chunk", "value-bits": 2, "aggregation": "contributors"},
        {"compressor": "dct-topk", "value-bits": 2, "aggregation": "contributors", "outer-momentum": 0.9},
        {"error-feedback": True, "error-feedback-decay": 0.95},
        {"outer-learning-rate": 0.7, "outer-momentum": 0.9, "outer-nesterov": False},
        {"lora-factors": "alternating", "error-feedback": True, "server-residual": True},
        {"lora-factors": "core", "peft.type": "lora", "compressor": "topk"},
        {"mode": "full", "compressor": "lowrank", "rank": 3, "bits": 1, "error-feedback": True},
        {"mode": "full", "rank": 2, "final-rank": 8, "basis-rounds": 3},
        {"mode": "full", "compressor": "tracking", "rank": 1, "bits": 1, "downlink-bits": 2, "learning-rate": 2e-2},
        {"mode": "full", "compressor": "tracking", "error-feedback": True, "server-residual": True},
        {"mode": "full", "compressor": "tracking-topk", "aggregation": "contributors", "density": 0.1, "rank": 4},
        {"mode": "full", "compressor": "tracking", "outer-momentum": 0.5, "trained-modules": "up_proj,down_proj"},
    ],
    ids=str,
)
def test_settings_that_go_together(config: dict[str, object]) -> None:
    assert config.items() <= RunSettings.from_run_config(config).flat().items()


@pytest.mark.parametrize("number", ["0.01", ".5", "2", "1e-3", "2.5e-4", "1e-10"])
def test_the_first_scale_may_be_a_number(number: str) -> None:
    assert read(scales="common", initial_scale=number).compression.initial_scale == number
    assert float(number) > 0


def test_masks_want_the_same_scales_for_all() -> None:
    assert read(secure_aggregation=True).compression.scales == "common"
    assert read().compression.scales == "own"
    assert read(secure_aggregation=True, compressor="lowrank").completed().compression.scales == "common"


def test_a_whole_number_is_a_float_too() -> None:
    assert read(learning_rate=1).training.learning_rate == 1.0


def test_a_preset_fills_in_what_stands_at_its_default() -> None:
    app = {"compressor": "auto", "bits": 0, "error-feedback": False}
    settings = RunSettings.from_run_config({"preset": "lora-default", "peft.r": 4, **app})
    assert settings.compression.error_feedback and settings.compression.server_residual
    assert settings.compression.bits == 1 and settings.model.peft["r"] == 4
    assert settings.model.peft["target_modules"] == "all-linear"
    assert RunSettings.from_run_config({"preset": "stateless", **app}).compression.bits == 4
    assert RunSettings.from_run_config({"preset": "stateless", **app, "bits": 2}).compression.bits == 2


def test_the_preset_of_full_fine_tuning_keeps_nothing_at_the_clients() -> None:
    settings = RunSettings.from_run_config({"preset": "full-default"})
    assert settings.compression.compressor == "tracking" and settings.compression.rank == 4
    assert settings.compression.server_residual and not settings.compression.error_feedback
    assert settings.training.learning_rate == 1e-2


@pytest.mark.parametrize("name", PIPELINES)
def test_every_preset_is_a_run(name: str) -> None:
    settings = RunSettings.from_run_config({"preset": name})
    assert RunSettings.from_run_config(settings.flat()) == settings


def test_an_unknown_preset_is_named_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'fast'.*stateless"):
        RunSettings.from_run_config({"preset": "fast"})


def test_trackers_are_named_with_commas() -> None:
    assert read().reporting.trackers == ()
    assert read(report_to="wandb, tensorboard,wandb").reporting.trackers == ("wandb", "tensorboard")
