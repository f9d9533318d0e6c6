"""Two hundred rounds: nothing grows but the history."""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from distro_fed.clients import PrivateClient
from distro_fed.compression import make_compressor
from distro_fed.reporting.events import EventWriter
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.resume import Saver
from distro_fed.transport.local_grid import LocalGrid
from tests.federation import make_model, norm_evaluate, shift_train

ROUNDS, EARLY = 200, 50


class DropInAndOut(LocalGrid):
    """Node 104 is there in every second ten rounds, and loses a request now and then."""

    round = 0

    def get_node_ids(self) -> list[int]:
        away = {104} if self.round // 10 % 2 else set()
        return [node_id for node_id in super().get_node_ids() if node_id not in away]


def weight(folder: Path) -> tuple[int, int]:
    """Files in a folder, and their bytes."""
    # the log of what left an organisation is kept for good
    files = [path for path in folder.rglob("*") if path.is_file() and "egress" not in str(path.relative_to(folder))]
    return len(files), sum(path.stat().st_size for path in files)


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_two_hundred_rounds(tmp_path: Path) -> None:
    coder = make_compressor("quantized", bits=1)
    client = PrivateClient(make_model, shift_train, norm_evaluate, state_dir=str(tmp_path / "members"))
    config = {"compressor": "quantized", "bits": 1, "error-feedback": True}
    grid = DropInAndOut(
        client.app(), 4, run_config=config,
        drop=lambda message, node_id: (node_id, message.metadata.message_type) == (104, "train")
        and message.metadata.group_id in ("5", "43", "125"),
    )  # fmt: skip
    seen: dict[int, dict[str, Any]] = {}
    with EventWriter(tmp_path / "events.jsonl") as events:
        server = DistroStrategy(
            compressor=coder, round_timeout=0.2, start_timeout=1.0, evaluate_every=0, events=events,
            outer_momentum=0.5, server_residual=True, saver=Saver(tmp_path / "checkpoint"),
        )  # fmt: skip

        def look(round_: int, _: object) -> None:
            grid.round = round_
            if round_ in (EARLY, ROUNDS):
                gc.collect()
                courier = server.courier
                seen[round_] = {
                    "objects": len(gc.get_objects()),
                    "memory": resident(),
                    "checkpoint files": weight(tmp_path / "checkpoint")[0],
                    "state files": weight(tmp_path / "members")[0],
                    "state bytes": weight(tmp_path / "members")[1],
                    "log": courier.downlink.log.end_version - courier.downlink.log.start_version,
                    "ledger": len(list(server.ledger)),
                    "history": len(server.progress.history()),
                    "messages": len(courier.stragglers._messages),
                    "queued in the grid": len(grid._objects),
                }

        server.start(grid, make_model(), ROUNDS, evaluate_fn=look)
    early, late = seen[EARLY], seen[ROUNDS]
    assert server.replica.version == ROUNDS
    assert sum(len(record.left_out) for record in server.progress.history()) == 3
    entries = late["ledger"] + late["history"] - early["ledger"] - early["history"]
    assert late["objects"] - early["objects"] < 4 * entries + 2000
    assert late["memory"] - early["memory"] < 30e6
    assert late["checkpoint files"] == early["checkpoint files"] == 3
    assert late["state files"] <= 2 + 4 * 2 + 32 + 2
    assert late["state bytes"] < 1.5 * early["state bytes"]
    assert late["log"] <= early["log"] + 1
    assert late["messages"] <= 4
    assert late["queued in the grid"] < 50
