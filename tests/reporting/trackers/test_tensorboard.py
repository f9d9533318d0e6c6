from __future__ import annotations

from pathlib import Path

import pytest

from distro_fed.reporting.trackers import open_tracker


def test_values_are_read_back_from_the_event_files(tmp_path: Path) -> None:
    """Also when a run is resumed: both files in one folder are one run."""
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for rounds in ((1, 0), (2,)):
        tracker = open_tracker("tensorboard", tmp_path, "trial", {"bits": 1, "mode": "lora"})
        for round_ in rounds:
            tracker.log({"train-loss": 3.0 - round_, "bytes-up/north": 1000.0 * round_}, round_)
        tracker.finish(failed=False)
    found = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    points = {tag: {point.step: point.value for point in found.Scalars(tag)} for tag in found.Tags()["scalars"]}
    assert points == {
        "train-loss": {0: 3.0, 1: 2.0, 2: 1.0},
        "bytes-up/north": {0: 0.0, 1: 1000.0, 2: 2000.0},
    }
    text = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "bits = 1" in text and "mode = 'lora'" in text
