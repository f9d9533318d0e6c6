from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from distro_fed.clients.fine_tuning import FineTuning
from distro_fed.clients.process_state import ProcessState, _file_name


def context(node_config: dict[str, Any], **run_config: Any) -> Context:
    config = {key.replace("_", "-"): value for key, value in run_config.items()}
    return Context(run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config=config)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Krankenhaus Süd A/B", "Krankenhaus Süd A B"),
        ("Bonn (A)", "Bonn [A]"),
        ("bank", "Bank"),
        ("a" * 60 + "x", "a" * 60 + "y"),
    ],
)
def test_two_organisations_never_share_a_residual_file(one: str, other: str) -> None:
    assert _file_name(one).lower() != _file_name(other).lower()
    assert "/" not in _file_name(one)


def test_a_deployed_client_takes_paths_and_permissions_from_its_own_configuration(tmp_path: Path) -> None:
    state = ProcessState(FineTuning(), None, None)
    run = {"state_dir": str(tmp_path / "servers choice"), "allow_download": True}
    deployed = context({"partition-id": 0}, **run)
    assert state.folder(deployed) is None
    assert not state.settings(deployed).model.allow_download
    own = context({"state-dir": str(tmp_path), "allow-download": True}, **run)
    assert state.folder(own) == tmp_path
    assert state.settings(own).model.allow_download
    virtual = context({"partition-id": 0, "simulation": True}, **run)
    assert state.folder(virtual) == tmp_path / "servers choice"


def test_the_name_is_configured_or_the_node_id_never_a_path() -> None:
    state = ProcessState(FineTuning(), None, None)
    assert state.name(context({"data": "/srv/patients/Mueller.jsonl"})) == "node-7"
    assert state.name(context({"data": "/srv/x", "name": "clinic"})) == "clinic"
    assert state.name(context({}, no_such_setting=1)) == "node-7"
