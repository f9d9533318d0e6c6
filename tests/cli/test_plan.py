from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from distro_fed.cli.main import app
from distro_fed.planner.codec import Codec
from distro_fed.planner.update_sizes import frame_bytes
from tests.planner.scenarios import SHAPE

runner = CliRunner()
PAGE = Path(__file__).parents[2] / "docs" / "planner.md"


def plan(*arguments: str) -> dict[str, Any]:
    result = runner.invoke(app, ["plan", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_json() -> None:
    found = plan("--mode", "full", "--compressor", "subspace", "--rank", "2", "--rounds", "6", "--local-steps", "4")
    frame = frame_bytes(Codec("subspace", rank=2, bits=1), SHAPE.layout)
    assert found["frame_bytes_up"] == found["frame_bytes_down"] == frame
    assert found["bytes_up_per_round"] > frame and found["bytes_up_per_run"] > 6 * frame
    assert found["uplink"] == "subspace rank=2 bits=1" and found["shapes"] == "exact" and found["nodes"] == 4
    assert found["seconds_per_run"] == pytest.approx(6 * found["seconds_per_round"])
    assert found["seconds_per_round"] == pytest.approx(sum(stage["seconds"] for stage in found["stages"]))
    assert found["bottleneck"]["description"].startswith("computing at node 1")
    assert set(found["references"]) == {"R1", "R2", "R3"}
    assert found["references"]["R1"]["ratio"] > 1000
    assert found["changes"] and {"change", "bytes_up_per_run", "seconds_per_run"} <= set(found["changes"][0])


def test_a_table() -> None:
    result = runner.invoke(
        app, ["plan", "1.2e9", "--compressor", "dense", "--dense-dtype", "bfloat16", "--nodes", "32"]
    )
    assert result.exit_code == 0, result.output
    for words in (
        "typical",
        "dense dtype=bfloat16",
        "Bottleneck: uplink of node 1",
        "R1",
        "R2",
        "R3",
        "a round",
        "the run",
    ):
        assert words in result.output, words


def test_options_reach_the_plan() -> None:
    lora = plan("--lora-rank", "2", "--lora-modules", "q_proj,v_proj", "--bits", "3", "--downlink-bits", "5")
    assert lora["trainable_parameters"] == 30 * 2 * (2 * 576 + 576 + 192)
    assert lora["uplink"] == "quantized bits=3" and lora["downlink"] == "quantized bits=5"
    sparse = plan("--compressor", "topk", "--density", "0.125", "--value-bits", "2", "--downlink-density", "0.25")
    assert sparse["uplink"] == "topk density=1/8 value-bits=2"
    assert sparse["downlink"] == "topk density=1/4 value-bits=2"
    slow = plan("--up", "1", "--down", "2", "--step-seconds", "0", "--latency", "0", "--local-steps", "1")
    assert [stage["seconds"] for stage in slow["stages"]][1] == 0
    assert slow["seconds_up"] == pytest.approx(slow["bytes_up_per_round"] * 8 / 1e6)
    assert slow["seconds_down"] == pytest.approx(slow["bytes_down_per_round"] * 8 / 2e6)
    hub = plan("--nodes", "6", "--topology", "hybrid", "--groups", "2", "--server-up", "0.5", "--server-down", "0.25")
    assert hub["bottleneck"]["where"] == "aggregator of group 1" and hub["bottleneck"]["link"] == "down_mbit"
    peers = plan("--topology", "peer-to-peer", "--nodes", "8")
    assert peers["hub_bytes_sent_per_round"] is None and peers["bytes_up_per_round"] == peers["bytes_down_per_round"]
    some = plan("--mode", "full", "--compressor", "tracking", "--trained-modules", "up_proj,down_proj")
    assert some["trainable_parameters"] == 30 * 2 * 576 * 1536
    assert some["bytes_up_per_round"] == pytest.approx(30 * 2 * (576 + 1536) / 8, abs=2000)
    low = plan("--mode", "full", "--compressor", "lowrank", "--rank", "4", "--bits", "8")
    assert low["uplink"] == "lowrank rank=4 bits=8"


def test_the_distro_report() -> None:
    found = plan("--preset", "distro-report")
    assert found["parameters"] == 1_204_813_824
    assert found["all_reduce_bytes_per_step"] == 74_400_000_000
    assert found["distro_bytes_per_step"] == 86_800_000
    assert found["upload_bytes_server"] == 2_800_000
    assert (round(found["ratio_naive"]), round(found["ratio_ring"], 1)) == (857, 53.6)
    assert (round(found["seconds_down"], 2), round(found["seconds_up"], 2)) == (6.94, 2.24)
    assert round(found["not_rounded"]["ratio_naive"], 1) == 819.2
    table = runner.invoke(app, ["plan", "--preset", "distro-report"]).output
    for words in ("74.4 GB", "86.8 MB", "857x", "53.6x", "2.80 MB", "6.94 s", "2.24 s", "R3"):
        assert words in table, words


def test_the_links_of_the_page(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "links.toml").write_text(text)
    found = plan("--links", str(tmp_path / "links.toml"), "--topology", "hybrid", "--mode", "full")
    assert found["nodes"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/model"], "not in the hub cache"),
        (["12"], "a plan needs 100,000"),
        (["--compressor", "zip"], "unknown compressor 'zip'"),
        (["--compressor", "subspace"], "use --mode full"),
        (["--density", "0.5"], "density = 0.5 has no meaning for quantized"),
        (["--downlink-density", "0.5"], "downlink-density = 0.5 has no meaning for quantized"),
        (["--bits", "0"], "bits of quantized is 0"),
        (["--nodes", "0"], "0 nodes"),
        (["--up", "-1"], "up-mbit of node is -1.0"),
        (["--rounds", "0"], "rounds = 0"),
        (["--topology", "hybrid"], "use --groups"),
        (["--links", "none.toml"], "none.toml does not exist"),
        (["--preset", "distro"], "there is: distro-report"),
        (["--preset", "distro-report", "--nodes", "3"], "leave --nodes out"),
        (["135M", "--preset", "distro-report"], "leave MODEL out"),
    ],
)
def test_wrong_input_is_one_message(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["plan", *arguments])
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert message in " ".join(result.output.split())


def test_a_plan_loads_nothing_heavy() -> None:
    code = (
        "import sys; from distro_fed.cli.main import app\n"
        "try: app(['plan', '8B', '--mode', 'full', '--compressor', 'dct-topk', '--json'])\n"
        "except SystemExit as end: print('code', end.code)\n"
        "print([name for name in ('torch', 'transformers', 'peft', 'datasets', 'flwr') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.endswith("code 0\n[]\n"), done.stdout[-300:]
