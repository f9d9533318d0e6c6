from __future__ import annotations

import tomllib
from pathlib import Path

from distro_fed.settings import RunSettings

APP = Path(__file__).parents[2] / "examples" / "simulation_quickstart"


def flat(table: dict[str, object], prefix: str = "") -> dict[str, object]:
    out: dict[str, object] = {}
    for key, value in table.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def test_every_setting_can_be_changed_with_run_config() -> None:
    """Flower accepts only keys that the app's configuration has."""
    config = flat(tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    settings = RunSettings.from_run_config(config)
    assert {key for key in settings.flat() if not key.startswith("peft.")} == {
        key for key in config if not key.startswith("peft.")
    }
