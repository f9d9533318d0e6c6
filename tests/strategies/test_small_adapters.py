"""Adapters of a few hundred values: each is trained, sent, averaged and exported by a whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from distro_fed.clients import make_client_app
from distro_fed.model.base import load_base_model
from distro_fed.reporting.report_file import read_report
from distro_fed.settings import RunSettings
from distro_fed.strategies.server import run_server
from distro_fed.transport.local_grid import LocalGrid
from tests.tiny import tiny_model_folder

METHODS: list[dict[str, Any]] = [
    {"peft.type": "VERA", "peft.r": 8},
    {"peft.type": "FOURIERFT", "peft.n-frequency": 50},
    {"peft.type": "RANDLORA", "peft.r": 4},
    {"peft.type": "VBLORA", "peft.r": 2, "peft.num-vectors": 8, "peft.vector-length": 16},
    {"peft.type": "TINYLORA"},
    {"peft.type": "UNILORA"},
    {"peft.type": "C3A", "peft.block-size": 16},
    {"peft.type": "ROAD", "peft.group-size": 16},
    {"peft.type": "WAVEFT", "peft.n-frequency": 50},
    {"peft.type": "SHIRA", "peft.r": 2},
    {"peft.type": "LN_TUNING"},
    {"lora-factors": "core", "peft.r": 4},
    {"lora-factors": "b", "peft.r": 1},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    tiny_model_folder(root / "tiny")
    for name in ("bank", "clinic"):
        (root / "organisations" / name).mkdir(parents=True)
        for split in ("train", "test"):
            rows = [{"text": f"{name} {index % 3} says something"} for index in range(8)]
            (root / "organisations" / name / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


@pytest.mark.parametrize("options", METHODS, ids=lambda options: str(next(iter(options.values()))))
def test_a_run_learns_and_plain_peft_loads_its_result(options: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    config = {
        "base-model": str(folder / "tiny"), "data-folder": str(folder / "organisations"),
        "run-dir": str(tmp_path / "run"), "num-server-rounds": 3, "local-steps": 4, "max-length": 32,
        "learning-rate": 5e-2, "round-timeout": 5.0, "bits": 2, **options,
    }  # fmt: skip
    run_server(LocalGrid(make_client_app(), 2, run_config=config), RunSettings.from_run_config(config))
    report = read_report(tmp_path / "run" / "report.json")
    assert not any(record.left_out or record.skipped for record in report.history)
    assert report.loss_after.mean is not None
    assert report.loss_before.mean is not None
    assert report.loss_after.mean < report.loss_before.mean - 0.01
    base = load_base_model(str(folder / "tiny")).model
    ids = torch.tensor([[72, 101, 108, 108, 111]])
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, str(tmp_path / "run" / "model")).eval()(ids).logits
    assert not torch.allclose(before, after, atol=1e-3)
