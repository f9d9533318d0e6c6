"""Finished runs, one JSON object a line; the file only grows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome

FOLDER = Path(__file__).parent / "results"


def row(configuration: Configuration, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """Everything about a run that is worth keeping."""
    from distro_fed.reporting.machine import describe_machine, installed_versions

    return {
        "id": configuration.id,
        **vars(configuration),
        "loss": round(outcome.loss, 6),
        "losses": {name: round(loss, 6) for name, loss in outcome.losses.items()},
        "bytes_up": outcome.bytes_up,
        "bytes_down": outcome.bytes_down,
        "rounds": outcome.rounds,
        "parameters": outcome.parameters,
        "train_losses": [round(loss, 4) for loss in outcome.loss_curve],
        "seconds": round(seconds),
        "machine": describe_machine(),
        "versions": installed_versions(),
    }


def append(path: Path, finished: dict[str, Any]) -> None:
    """Add a line, and have it on disk before going on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        if cut_off:
            file.write("\n")
        file.write(json.dumps(finished) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(paths: Iterable[Path] | None = None) -> list[dict[str, Any]]:
    """All finished runs, the last of each; a line that a kill cut off is passed over."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FOLDER.glob("*.jsonl")) if paths is None else paths:
        for line in path.read_text().splitlines() if path.is_file() else ():
            try:
                finished = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[finished["id"]] = finished | {"grid": path.stem}
    return list(found.values())
