"""What the server runs: the strategy that the settings describe, and figures for the test that waits for them."""

import json
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from distro_fed.files import write_atomically
from distro_fed.model.trainable import trainable_full
from distro_fed.reporting.events import EventWriter
from distro_fed.settings import RunSettings
from distro_fed.strategies.checkpoint import read_checkpoint
from distro_fed.strategies.distro import DistroStrategy
from distro_fed.strategies.resume import Saver
from distro_fed.strategies.server import strategy_from_settings
from linear_app.task import load_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = RunSettings.from_run_config(context.run_config)
    folder = Path(settings.resume_from_checkpoint or settings.run_dir)
    with EventWriter(folder / "events.jsonl") as events:
        figures = run(grid, settings, events, folder / "checkpoint")
        write_atomically(folder / "figures.json", json.dumps(figures))
        events.write("run_finished", seconds=0.0)


def run(
    grid: Grid, settings: RunSettings, events: EventWriter | None = None, checkpoint: Path | None = None
) -> dict[str, Any]:
    saver = Saver(checkpoint, settings=settings.flat()) if checkpoint else None
    saved = read_checkpoint(checkpoint) if checkpoint and settings.resume_from_checkpoint else None
    strategy = strategy_from_settings(settings, events=events, saver=saver, resume_from=saved)
    if settings.security.secure_aggregation:
        strategy.fraction_evaluate = 0.0
    strategy.start(grid, trainable_full(load_model()), settings.federation.num_server_rounds)
    return figures_of(strategy)


def figures_of(strategy: DistroStrategy) -> dict[str, Any]:
    return {
        "version": strategy.replica.version,
        "chain": strategy.replica.chain.hex(),
        "values": strategy.replica.values.tolist(),
        "keyframes": strategy.courier.downlink.keyframes_sent,
        "left_out": [sorted(left.client for left in record.left_out) for record in strategy.progress.history()],
        "skipped": [record.skipped for record in strategy.progress.history()],
        "held_out": strategy.progress.held_out,
    }
