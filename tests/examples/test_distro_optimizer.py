"""The example of the optimizer, on a text and a model that are small enough for a test."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

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


def check(output: str) -> None:
    before, after = (float(loss) for loss in re.findall(r"held-out loss \w+: ([\d.]+)", output))
    assert after < before
    assert "all peers are equal" in output
    lines = re.findall(r"step +(\d+)  loss [\d.]+  .*: ([\d,]+) sent, ([\d,]+) received; .*: ([\d,]+) each", output)
    assert [line[0] for line in lines] == ["3", "6"]
    sent, received, dense = (int(number.replace(",", "")) for number in lines[-1][1:])
    assert sent <= received <= dense / 100


def arguments(topology: str, peers: int, data: Path) -> list[str]:
    options = {"topology": topology, "peers": peers, "steps": 6, "hidden": 64, "layers": 1, "report-every": 3}
    return [*(f"--{name}={value}" for name, value in options.items()), f"--data={data}"]


def test_a_few_steps_of_two_processes_and_an_aggregator(organisations: Path) -> None:
    command = [sys.executable, str(SCRIPT), *arguments("aggregator", 2, organisations)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    check(run.stdout)


def test_a_few_steps_over_gloo(organisations: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One peer, in this process; test_all_gather has more."""
    example = runpy.run_path(str(SCRIPT))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    options = example["parse_options"](arguments("all-gather", 1, organisations))
    threads = torch.get_num_threads()
    try:
        example["train"](0, options, sorted(organisations.iterdir()), store.port)
    finally:
        torch.set_num_threads(threads)
    check(capsys.readouterr().out)


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=re.escape(f"{tmp_path} has no folder")):
        runpy.run_path(str(SCRIPT))["main"](["--data", str(tmp_path)])
