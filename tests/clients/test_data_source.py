from __future__ import annotations

from pathlib import Path

import pytest

from distro_fed.clients.data_source import DataSource, data_source
from distro_fed.errors import DataNotFound
from distro_fed.settings import DataSettings


def test_partitions_are_subfolders_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("")
    settings = DataSettings(data_folder=str(tmp_path))
    assert [data_source({"partition-id": i, "simulation": True}, settings).name for i in range(3)] == ["a", "b", "c"]
    with pytest.raises(DataNotFound, match=r"has 3 organisations, this is node 3"):
        data_source({"partition-id": 3, "simulation": True}, settings)


def test_the_nodes_own_configuration_wins_over_the_run(tmp_path: Path) -> None:
    (tmp_path / "servers-choice").mkdir()
    settings = DataSettings(data_folder=str(tmp_path))
    own = data_source({"data": "/srv/ward 3", "partition-id": 0}, settings)
    assert own == DataSource("", "/srv/ward 3", "/srv/ward 3")  # a path is no name: names leave the organisation
    files = data_source({"train-data": "t.jsonl", "test-data": "h.jsonl", "name": "St. Mary"}, settings)
    assert files == DataSource("St. Mary", "t.jsonl", "h.jsonl")
    assert data_source({"train-data": "t.jsonl"}, settings).test is None
    (tmp_path / "one.jsonl").write_text("")
    assert data_source({"data": str(tmp_path / "one.jsonl")}, settings).test is None  # nothing of it is held out


def test_a_deployed_node_does_not_follow_paths_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(DataNotFound, match="--node-config"):
        data_source({"name": "clinic", "partition-id": 0}, DataSettings(data_folder=str(tmp_path)))


def test_nothing_configured_says_what_to_do() -> None:
    with pytest.raises(DataNotFound, match="--node-config"):
        data_source({}, DataSettings())
