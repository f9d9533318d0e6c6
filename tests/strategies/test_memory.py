"""Server memory does not grow with the number of members."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import gc, json, resource, sys
    import torch
    from torch import nn
    from distro_fed.clients import PrivateClient, TrainResult
    from distro_fed.compression import make_compressor
    from distro_fed.model.trainable import trainable_full
    from distro_fed.strategies import DistroStrategy, exchange, ordered_sum
    from distro_fed.transport.local_grid import LocalGrid

    torch.set_num_threads(1)
    ordered_sum.WAITING_LIMIT = 4_000_000
    exchange.PULL_LIMIT = 8_000_000
    nodes, values = int(sys.argv[1]), 2_000_000

    def build():
        torch.manual_seed(0)
        return trainable_full(nn.Linear(values // 1000, 1000, bias=False))

    def train(module, info):
        next(module.parameters()).data.add_(0.001)
        return TrainResult(1, 1.0)

    app = PrivateClient(build, train).app()
    coder = make_compressor(sys.argv[2], density=1 / 64)
    config = {"compressor": sys.argv[2], "density": 1 / 64, "mode": "lora"}
    peaks = []

    def rss():
        return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

    class Watched(LocalGrid):
        def pull_messages(self, ids):
            peaks.append(rss())
            return super().pull_messages(ids)

    grid = Watched(app, nodes, run_config=config)
    strategy = DistroStrategy(compressor=coder, round_timeout=60, fraction_evaluate=0.0)
    strategy.start(grid, build(), 2)
    assert strategy.replica.version == 2
    print(json.dumps({"peak": max(peaks[3:]), "model": 4 * values}))
"""

# By itself glibc keeps freed blocks of up to 32 MB, more or fewer of them from one run to the next: up to five models
# here. Blocks that are mapped one by one go back at once, and the peaks of two runs differ by less than 1 MB.
EXACT_RSS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("compressor", ["dense", "topk"])
def test_sixteen_members_need_no_more_than_three(compressor: str) -> None:
    def peak(nodes: int) -> tuple[float, float]:
        out = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), str(nodes), compressor],
            check=True, capture_output=True, text=True, timeout=900, env=os.environ | EXACT_RSS,
        )  # fmt: skip
        measured = json.loads(out.stdout.splitlines()[-1])
        return measured["peak"], measured["model"]

    few, model = peak(3)
    many, _ = peak(16)
    # holding every reply would take 13 models more
    assert many - few < 2 * model
