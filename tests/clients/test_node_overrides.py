from __future__ import annotations

from typing import Any

import pytest

from distro_fed.clients.node_overrides import examples_per_step, local_processes, with_node_overrides
from distro_fed.errors import SettingsError
from distro_fed.settings import RunSettings


def run(**options: Any) -> RunSettings:
    return RunSettings.from_run_config({key.replace("_", "-"): value for key, value in options.items()})


def test_only_what_concerns_the_machine_is_taken_from_the_node() -> None:
    node = {
        "device": "cpu", "threads": 2, "bf16": True, "gradient-checkpointing": True, "per-device-train-batch-size": 2,
        "gradient-accumulation-steps": 3, "dtype": "bfloat16", "quantization": "8bit", "learning-rate": 1.0,
        "local-steps": 99, "seed": 5, "name": "clinic", "max-grad-norm": 0.0, "mode": "full",
    }  # fmt: skip
    asked = run(learning_rate=0.5, local_steps=3)
    own = with_node_overrides(asked, node)
    changed = {key for key, value in own.flat().items() if value != asked.flat()[key]}
    assert changed == {"device", "threads", "bf16", "gradient-checkpointing", "per-device-train-batch-size",
                       "gradient-accumulation-steps", "dtype", "quantization"}  # fmt: skip
    assert (own.training.threads, own.model.quantization, examples_per_step(own)) == (2, "8bit", 6)


def test_without_any_the_settings_are_those_of_the_run() -> None:
    settings = run()
    assert with_node_overrides(settings, {"name": "clinic", "data": "/data"}) is settings


@pytest.mark.parametrize(
    ("node", "options", "message"),
    [
        ({"threads": "4"}, {}, "threads = '4' is a str; a int is needed: --node-config 'threads=2'"),
        ({"bf16": 1}, {}, "bf16 = 1 is a int; a bool is needed"),
        ({"threads": True}, {}, "threads = True is a bool"),
        ({"per-device-train-batch-size": 0}, {}, "per-device-train-batch-size = 0; it must be at least 1"),
        ({"device": "gpu"}, {}, "the node config does not go with the run: .*'gpu'"),
        ({"dtype": "int4"}, {}, "'int4'; choose one of float32"),
        ({"quantization": "2bit"}, {}, "'2bit'; choose one of none, 8bit, 4bit"),
        ({"dtype": "bfloat16"}, {"mode": "full"}, "dtype = 'bfloat16' in a run of mode = 'full' and dtype = 'float32'"),
        ({"quantization": "4bit"}, {"mode": "full"}, "quantization = '4bit' in a run of mode = 'full'"),
        ({"dtype": "bfloat16"}, {"lora_factors": "core"}, "lora-factors = 'core'"),
        ({"quantization": "8bit"}, {"lora_factors": "core"}, "lora-factors = 'core'"),
    ],
)
def test_what_a_node_cannot_choose_is_named(node: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        with_node_overrides(run(**options), node)


def test_the_format_that_the_run_has_anyway_may_be_said() -> None:
    assert with_node_overrides(run(mode="full"), {"dtype": "float32", "quantization": "none"}) == run(mode="full")


def test_a_run_cannot_train_a_quantised_base() -> None:
    for options in ({"mode": "full"}, {"lora_factors": "core"}):
        with pytest.raises(SettingsError, match="quantization = '4bit' with mode"):
            run(quantization="4bit", **options)
    assert run(quantization="4bit").model.quantization == "4bit"


def test_local_processes_share_the_micro_batches_of_a_step() -> None:
    settings = run(gradient_accumulation_steps=4)
    assert local_processes({}, settings) == 1
    assert local_processes({"local-processes": 2}, settings) == 2
    for wrong in (0, "2", True, 1.0):
        with pytest.raises(SettingsError, match="a whole number from 1 on"):
            local_processes({"local-processes": wrong}, settings)
    with pytest.raises(SettingsError, match="it must be a multiple"):
        local_processes({"local-processes": 3}, settings)
