"""The example of the optimizer, on a text and a model that are small enough for a test."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from distro_fed.errors import DataNotFound

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "distro_optimizer" / "train.py"


@pytest.fixture
def organisations(tmp_path: Path) -> Path:
    for name in ("bakery", "garage"):
        folder = tmp_path / "organisations" / name
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            examples = [
                {"prompt": f"What does the {name} sell on day {i}?", "completion": " Bread."} for i in range(20)
            ]
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    return tmp_path / "organisations"


@pytest.mark.parametrize("topology", ["all-gather", "aggregator"])
def test_a_few_steps_of_two_processes(organisations: Path, topology: str) -> None:
    command = [sys.executable, str(SCRIPT), "--peers", "2", "--topology", topology, "--steps", "6", "--hidden", "64"]
    command += ["--layers", "1", "--report-every", "3", "--data", str(organisations)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    before, after = (float(loss) for loss in re.findall(r"held-out loss \w+: ([\d.]+)", run.stdout))
    assert after < before
    assert "all peers are equal" in run.stdout
    lines = re.findall(r"step +(\d+)  loss [\d.]+  .*: ([\d,]+) sent, ([\d,]+) received; .*: ([\d,]+) each", run.stdout)
    assert [line[0] for line in lines] == ["3", "6"]
    sent, received, dense = (int(number.replace(",", "")) for number in lines[-1][1:])
    assert 100 < sent <= received < dense / 100


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=re.escape(f"{tmp_path} has no folder")):
        runpy.run_path(str(SCRIPT))["main"](["--data", str(tmp_path)])
