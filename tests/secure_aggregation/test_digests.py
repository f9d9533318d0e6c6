from __future__ import annotations

from typing import Any

import pytest

from distro_fed.secure_aggregation.digests import plan_digest, work_digest
from distro_fed.settings import RunSettings


def work(**changes: Any) -> bytes:
    return work_digest(RunSettings.from_run_config({key.replace("_", "-"): value for key, value in changes.items()}))


@pytest.mark.parametrize(
    "change",
    [{"learning_rate": 0.5}, {"local_steps": 3}, {"max_length": 16}, {"optim": "muon"}, {"warmup_steps": 1},
     {"weight_decay": 0.1}, {"max_grad_norm": 0.5}, {"lora_factors": "b"}, {"error_feedback": True},
     {"max_train_examples": 5}, {"peft.lora-alpha": 4}],
    ids=str,
)  # fmt: skip
def test_what_changes_the_work_changes_the_digest(change: dict[str, Any]) -> None:
    assert work(**change) != work()


@pytest.mark.parametrize(
    "change",
    [{"threads": 3}, {"device": "cpu"}, {"run_name": "other"}, {"data_folder": "x"}, {"round_timeout": 1.0},
     {"per_device_train_batch_size": 1}],
    ids=str,
)  # fmt: skip
def test_what_is_for_a_machine_to_decide_does_not(change: dict[str, Any]) -> None:
    assert work(**change) == work()


def test_the_plan_binds_both() -> None:
    assert len({plan_digest(b"a", b"b"), plan_digest(b"b", b"b"), plan_digest(b"a", b"c")}) == 3
