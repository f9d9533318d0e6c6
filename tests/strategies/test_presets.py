"""Every preset of a run without secure aggregation learns, with its own learning rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strategies.whole_pipeline import lowered, write_task


@pytest.mark.parametrize("preset", ["lora-default", "lora-sparse", "full-default", "stateless"])
def test_a_preset_learns(preset: str, tmp_path: Path) -> None:
    task, node = write_task(tmp_path)
    nodes = [{**node, "name": name, "state-dir": str(tmp_path / "state" / name)} for name in ("a", "b", "c")]
    config = {**task, "preset": preset, "num-server-rounds": 10, "evaluate-every": 1}
    assert lowered(config, nodes, 10) > 0.3
