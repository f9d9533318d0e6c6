"""Reads back the ``report.json`` of a run."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path

from distro_fed.errors import DistroFedError
from distro_fed.reporting.report import LeftOut, Losses, RoundRecord, RunReport


def read_report(path: Path) -> RunReport:
    """Read a ``report.json``.

    Raises
    ------
    DistroFedError
        If the file is missing, is not JSON, or lacks a key.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DistroFedError(f"{path} does not exist; a run writes it when it ends") from error
    except ValueError as error:
        raise DistroFedError(f"{path} is not a report: {error}") from error
    try:
        # a key with a default may be missing: reports of earlier releases stay readable
        required = {item.name for item in fields(RunReport) if item.default is item.default_factory is MISSING}
        known = {item.name: data[item.name] for item in fields(RunReport) if item.name in required | data.keys()}
        history = [
            RoundRecord(
                **{
                    **record,
                    "held_out_loss": Losses(**record["held_out_loss"]),
                    "left_out": [LeftOut(**left) for left in record["left_out"]],
                }
            )
            for record in data["history"]
        ]
        losses = {key: Losses(**data[key]) for key in ("loss_before", "loss_after")}
    except (KeyError, TypeError, AttributeError) as error:
        raise DistroFedError(f"{path} is not a report of this release: {error}") from error
    return RunReport(**{**known, **losses, "history": history})
