from __future__ import annotations

import math
from typing import Any

import pytest

from distro_fed.compression import compressor_names, make_compressor
from distro_fed.errors import SettingsError
from distro_fed.presets import SELECTING
from distro_fed.strategies import DistroStrategy


@pytest.mark.parametrize(
    "options",
    [
        {"quorum": 5.0},
        {"fraction_train": -0.1},
        {"min_train_nodes": 0},
        {"seed": 2**64},
        {"aggregation": "median"},
        {"outer_learning_rate": 0.0},
        {"outer_learning_rate": -1.0},
        {"outer_learning_rate": math.nan},
        {"outer_learning_rate": math.inf},
        {"outer_momentum": 1.0},
        {"outer_momentum": -0.1},
        {"outer_momentum": math.nan},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        DistroStrategy(**options)


def test_up_and_down_must_be_of_one_kind() -> None:
    with pytest.raises(SettingsError, match="different kinds"):
        DistroStrategy(compressor="quantized", downlink_compressor=make_compressor("topk"))


@pytest.mark.parametrize("option", [{"server_residual": True}, {"outer_momentum": 0.9}], ids=str)
def test_what_is_kept_between_rounds_needs_a_space_that_stays(option: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="whose space changes every round"):
        DistroStrategy(compressor="subspace", **option)
    DistroStrategy(compressor="quantized", **option)


@pytest.mark.parametrize("name", sorted(set(compressor_names()) - set(SELECTING)))
def test_contributors_need_a_compressor_that_leaves_coefficients_out(name: str) -> None:
    with pytest.raises(SettingsError, match=f"with compressor '{name}', of which every member sends every"):
        DistroStrategy(compressor=name, aggregation="contributors")


@pytest.mark.parametrize("name", SELECTING)
def test_contributors_of_selecting_compressors(name: str) -> None:
    assert DistroStrategy(compressor=name, aggregation="contributors").aggregation == "contributors"
