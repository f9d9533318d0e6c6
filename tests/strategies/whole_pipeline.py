"""Runs of the whole product on a tiny model: settings in, held-out loss out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distro_fed.clients import make_client_app
from distro_fed.model.configured import load_trainable
from distro_fed.settings import RunSettings
from distro_fed.strategies.server import strategy_from_settings
from distro_fed.transport.local_grid import LocalGrid
from tests.tiny import tiny_model_folder


def lowered(config: dict[str, Any], nodes: list[dict[str, Any]], rounds: int) -> float:
    """How far a run of the tiny model brings the mean held-out loss down."""
    settings = RunSettings.from_run_config(config)
    loaded = load_trainable(settings)
    strategy = strategy_from_settings(settings, loaded.base_digest)
    grid = LocalGrid(make_client_app(), len(nodes), run_config=config, node_configs=nodes)
    strategy.start(grid, loaded.trainable, rounds)
    assert strategy.replica.version == rounds
    before, after = (list(strategy.progress.held_out[round_].values()) for round_ in (0, rounds))
    return sum(before) / len(before) - sum(after) / len(after)


def write_task(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a tiny model and questions with answers that can be learned; settings of a run and of a node."""
    tiny_model_folder(folder / "model")
    (folder / "data").mkdir()
    rows = [json.dumps({"prompt": f"{index % 5}:", "completion": f" answer {index % 5}"}) for index in range(24)]
    for split, part in (("train", rows), ("test", rows[:5])):
        (folder / "data" / f"{split}.jsonl").write_text("\n".join(part))
    run = {"base-model": str(folder / "model"), "max-length": 32, "round-timeout": 10.0}
    return run, {"data": str(folder / "data"), "simulation": False}
