from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distro_fed.model.base import load_base_model
from distro_fed.model.configured import load_trainable
from distro_fed.settings import RunSettings
from tests.tiny import tiny_model_folder


@pytest.mark.parametrize(
    ("options", "more"),
    [({}, False), ({"mode": "full"}, False), ({"lora-factors": "alternating"}, False), ({"lora-factors": "b"}, True),
     ({"lora-factors": "core"}, True), ({"peft.type": "VERA", "peft.r": 4}, True)],
    ids=str,
)  # fmt: skip
def test_what_members_make_and_do_not_train_is_part_of_the_digest(
    options: dict[str, Any], more: bool, tmp_path: Path
) -> None:
    """Another release of a library that draws otherwise is told apart before it trains."""
    folder = str(tiny_model_folder(tmp_path / "base"))
    base = load_base_model(folder).digest

    def digest(seed: int) -> str:
        return load_trainable(RunSettings.from_run_config({"base-model": folder, "seed": seed, **options})).base_digest

    assert digest(1) == digest(1)
    assert digest(1).startswith(base + "+") if more else digest(1) == base
    if "lora-factors" in options and more:  # VERA has a seed of its own
        assert digest(1) != digest(2)
