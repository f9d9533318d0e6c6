from __future__ import annotations

import math

import pytest

from distro_fed.errors import SettingsError
from distro_fed.settings import RunSettings


def read(**changes: object) -> RunSettings:
    return RunSettings.from_run_config({key.replace("_", "-"): value for key, value in changes.items()})


def test_one_key_switches_the_mode_and_the_rest_follows() -> None:
    lora, full = read(mode="lora"), read(mode="full")
    assert lora.compression.compressor == "quantized"
    assert full.compression.compressor == "subspace"
    assert lora.training.learning_rate > 0
    assert full.training.learning_rate > 0


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
        ({"local-steps": 1.5}, "is a float; a int is needed"),
        ({"mode": "lorra"}, "choose one of lora, full"),
        ({"compressor": "subspace", "mode": "lora"}, "needs mode = 'full'"),
        ({"mode": "full", "error-feedback": True}, "its basis changes every round"),
        ({"mode": "full", "server-residual": True}, "its basis changes every round"),
    ],
)
def test_bad_values_are_named_with_the_way_out(config: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        RunSettings.from_run_config(config)
    assert message in str(error.value)


def test_a_whole_number_is_a_float_too() -> None:
    assert read(learning_rate=1).training.learning_rate == 1.0
