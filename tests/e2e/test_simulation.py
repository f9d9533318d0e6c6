"""The quickstart example through ``flwr run`` in Flower's own simulation runtime, with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distro_fed.cli.demo_secure import make_members
from tests.tiny import tiny_model_folder

ROOT = Path(__file__).parents[2]
REPORT_KEYS = {
    "mode", "compressor", "rounds", "local_steps", "clients", "loss_before", "loss_after", "bytes_up_per_client",
    "bytes_down_per_client", "ratio_fedavg_full_bf16", "ratio_allreduce_bf16", "seconds",
}  # fmt: skip

LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
if sys.argv[3] == "lora":
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, sys.argv[2])
else:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[2])
model.eval()
ids = torch.arange(40, 60).view(1, -1)
with torch.no_grad():
    print(float(model(input_ids=ids).logits.float().sum()))
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inputs")
    tiny_model_folder(root / "model")
    for folder, name in (
        ("organisations", "bank"), ("organisations", "clinic"),
        ("four", "bank"), ("four", "clinic"), ("four", "school"), ("four", "shop"),
    ):  # fmt: skip
        (root / folder / name).mkdir(parents=True)
        for split, count in (("train", 20), ("test", 4)):
            rows = [{"prompt": f"{name} {index % 5}:", "completion": f" answer {index % 5}"} for index in range(count)]
            (root / folder / name / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def simulate(example: str, nodes: int, settings: str, runs: Path) -> dict[str, Any]:
    """Run an example as the command line does, with a home of its own; returns its report."""
    command = [
        sys.executable, "-c", "from distro_fed.cli.main import app; app()", "simulate",
        str(ROOT / "examples" / example), "--nodes", str(nodes), "--runs-dir", str(runs), "--name", "run",
        "--run-config", settings,
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(runs)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads((runs / "run" / "report.json").read_text())
    return report


@pytest.mark.e2e
@pytest.mark.parametrize("mode", ["lora", "full"])
def test_the_quickstart_runs_in_the_real_runtime(mode: str, inputs: Path, tmp_path: Path) -> None:
    settings = (
        f"mode={mode} base-model='{inputs / 'model'}' data-folder='{inputs / 'organisations'}' num-server-rounds=3 "
        "local-steps=4 max-length=48 learning-rate=0.02"
    )
    report = simulate("simulation_quickstart", 2, settings, tmp_path)
    assert set(report) >= REPORT_KEYS
    assert report["mode"] == mode
    assert report["clients"] == ["bank", "clinic"]
    assert report["loss_after"]["mean"] < report["loss_before"]["mean"]
    assert not any(record["left_out"] or record["skipped"] for record in report["history"])
    # one compressed update a round each way, and one more down for the last evaluation
    rounds, overhead = 3, 1500
    for name in report["clients"]:
        assert 0 < report["bytes_up_per_client"][name] < (rounds + 1) * (overhead + report["trainable_parameters"])
        assert 0 < report["bytes_down_per_client"][name] < (rounds + 1) * (overhead + report["trainable_parameters"])
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
    assert "answer" not in (tmp_path / "run" / "model" / "README.md").read_text()  # shapes, never content
    model = tmp_path / "run" / "model"
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, str(inputs / "model"), str(model), mode],
        capture_output=True, text=True, check=True, timeout=600, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert float(loaded.stdout.split()[-1]) != 0.0


@pytest.mark.e2e
def test_the_secure_example_runs_in_the_real_runtime(inputs: Path, tmp_path: Path) -> None:
    names = ["bank", "clinic", "school", "shop"]
    make_members(tmp_path / "members", names)
    settings = (
        f"base-model='{inputs / 'model'}' data-folder='{inputs / 'four'}' secure-folder='{tmp_path / 'members'}' "
        "num-server-rounds=3 local-steps=4 max-length=48 learning-rate=0.02 bits=4 min-available-nodes=4"
    )
    report = simulate("secure_federation", 4, settings, tmp_path)
    assert report["clients"] == names
    assert report["loss_after"]["per_client"].keys() == {"all members"}
    assert report["loss_after"]["mean"] < report["loss_before"]["mean"]
    assert not any(record["left_out"] or record["skipped"] for record in report["history"])
    # two exchanges before the first round, three a round, and three for the final evaluation
    assert report["exchanges_per_round"] == pytest.approx((2 + 3 * 3 + 3) / 3)
