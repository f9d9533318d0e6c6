"""A client that keeps its optimizer's state, through the whole product."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.clients.test_different_hardware import federate
from tests.clients.test_different_hardware import place as place

#: the rate is constant, or a run of other rounds would have other rates
ADAMW = {"optim": "adamw", "learning_rate": 1e-2, "lr_scheduler_type": "constant"}


@pytest.mark.parametrize("node", [{}, {"local-processes": 2, "gradient-accumulation-steps": 2}], ids=["one", "two"])
def test_one_member_in_short_rounds_trains_as_in_one_long_round(
    node: dict[str, int], place: Path, tmp_path: Path
) -> None:
    long = federate(place, node, local_steps=4, **ADAMW)
    short = {"rounds": 4, "local_steps": 1, "optimizer_state": "kept", **ADAMW}
    kept = federate(place, {"state-dir": str(tmp_path), **node}, **short)
    # updates are rounded when they are added to the replica
    torch.testing.assert_close(kept.replica.values, long.replica.values, rtol=0, atol=1e-5)
    fresh = federate(place, node, **{**short, "optimizer_state": "fresh"})
    assert float((fresh.replica.values - long.replica.values).abs().max()) > 1e-4


def test_without_a_folder_a_member_says_so_and_trains_on(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        federate(place, {}, optimizer_state="kept")
    assert "there is no state-dir to keep it in" in caplog.text
