"""The settings of a run, read from Flower's flat ``run_config``.

Keys are kebab-case; each belongs to one frozen dataclass in :mod:`distro_fed.setting_groups`, whose field of the same
name (in snake_case) documents it. ``0`` or ``"auto"`` means "the preset of this mode", so that switching
``mode`` or ``compressor`` alone gives a sensible run. ``peft.*`` keys go to the PEFT configuration under
their own names; ``app.*`` keys are the app's own and are not looked at.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from distro_fed.errors import SettingsError
from distro_fed.presets import COMPRESSOR_PRESETS, LEARNING_RATES, PIPELINES, TRAINED_INSIDE
from distro_fed.setting_combinations import check_combinations, compressor_name, scales_of
from distro_fed.setting_groups import (
    CompressionSettings,
    DataSettings,
    FederationSettings,
    ModelSettings,
    ReportingSettings,
    SecuritySettings,
    TrainingSettings,
    Value,
)
from distro_fed.setting_ranges import check_values

__all__ = [
    "CompressionSettings",
    "DataSettings",
    "FederationSettings",
    "ModelSettings",
    "ReportingSettings",
    "RunSettings",
    "SecuritySettings",
    "TrainingSettings",
    "Value",
]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All settings of one run."""

    #: name of the run, also of its folder
    run_name: str = "run"
    #: folder for report, events and model; empty: ``runs/<run_name>``
    run_dir: str = ""
    #: folder of a run that broke off (killed, failed): go on with it there; empty: a new run
    resume_from_checkpoint: str = ""
    #: rounds from one checkpoint to the next, in ``checkpoint`` in the run's folder; 0: never
    save_rounds: int = 1
    seed: int = 0
    #: a whole pipeline by name: ``lora-default``, ``lora-sparse``, ``full-default``, ``stateless`` or ``secure``. It
    #: fills in what is not given or stands at its default; empty: no preset
    preset: str = ""
    #: folder for replica and residual of the clients of a simulation; empty: nothing is kept (stateless); ``auto``:
    #: ``clients`` in ``run-dir`` (or in ``runs/<run-name>``). A deployed client takes ``state-dir`` from its node
    #: config only.
    state_dir: str = ""
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    federation: FederationSettings = field(default_factory=FederationSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    reporting: ReportingSettings = field(default_factory=ReportingSettings)

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> RunSettings:
        """Read, check and complete the settings.

        Raises
        ------
        SettingsError
            A key is unknown (the message offers the nearest one), a value has the wrong type, or is out
            of range.
        """
        values: dict[type, dict[str, Any]] = {group: {} for group in (*_GROUPS.values(), cls)}
        peft: dict[str, Value] = {}
        for key, value in _with_preset(run_config).items():
            if key.startswith("app."):
                continue
            if key.startswith("peft."):
                peft[key.removeprefix("peft.").replace("-", "_")] = value
                continue
            if key not in _OWNERS:
                near = difflib.get_close_matches(key, _OWNERS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(_OWNERS))}"
                raise SettingsError(f"unknown setting {key!r}{hint} (an app's own keys start with 'app.')")
            owner, name, default = _OWNERS[key]
            values[owner][name] = _typed(key, value, default)
        values[ModelSettings]["peft"] = peft
        groups = {name: group(**values[group]) for name, group in _GROUPS.items()}
        return cls(**values[cls], **groups).completed()

    def completed(self) -> RunSettings:
        """Check the settings and fill in presets; does nothing to settings that are complete.

        Raises
        ------
        SettingsError
            A value is out of range, or two do not go together.
        """
        check_values(self.flat())
        check_combinations(self)
        return _complete(self)

    def flat(self) -> dict[str, Value]:
        """Back to one flat dict with kebab-case keys, presets filled in."""
        out: dict[str, Value] = {}
        for part in (self, *(getattr(self, name) for name in _GROUPS)):
            for item in fields(part):
                if item.name not in _GROUPS and item.name != "peft":
                    out[item.name.replace("_", "-")] = getattr(part, item.name)
        out.update({f"peft.{name.replace('_', '-')}": value for name, value in self.model.peft.items()})
        return out


_GROUPS: dict[str, type] = {
    "model": ModelSettings,
    "data": DataSettings,
    "training": TrainingSettings,
    "compression": CompressionSettings,
    "federation": FederationSettings,
    "security": SecuritySettings,
    "reporting": ReportingSettings,
}
_OWNERS: dict[str, tuple[type, str, Any]] = {
    item.name.replace("_", "-"): (group, item.name, item.default)
    for group in (RunSettings, *_GROUPS.values())
    for item in fields(group)
    if item.name not in _GROUPS and item.name != "peft"
}


def _with_preset(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The run config with the preset that it names."""
    name = run_config.get("preset", "")
    if not name:
        return dict(run_config)
    if name not in PIPELINES:
        raise SettingsError(f"setting preset = {name!r}; choose one of {', '.join(PIPELINES)}")
    # an app's configuration holds many keys at their defaults: only what differs from them was chosen
    chosen = {key: value for key, value in run_config.items() if key not in _OWNERS or value != _OWNERS[key][2]}
    return {**run_config, **PIPELINES[name], **chosen}


def _typed(key: str, value: Any, default: Any) -> Any:
    wanted = type(default)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        raise SettingsError(f"setting {key} = {value!r} is a {type(value).__name__}; a {wanted.__name__} is needed")
    return value


def _complete(settings: RunSettings) -> RunSettings:
    compression = replace(settings.compression, compressor=compressor_name(settings))
    name = compression.compressor
    for key, preset in COMPRESSOR_PRESETS[name].items():
        if not getattr(compression, key):
            compression = replace(compression, **{key: preset})
    compression = replace(
        compression,
        downlink_density=compression.downlink_density or compression.density,
        downlink_bits=compression.downlink_bits or compression.bits,
        scales=scales_of(settings),
    )
    training = settings.training
    if not training.learning_rate:
        family = "subspace" if name in TRAINED_INSIDE else settings.model.mode
        family = "core" if settings.model.lora_factors == "core" else family
        training = replace(training, learning_rate=LEARNING_RATES[family])
    state_dir = settings.state_dir
    if state_dir == "auto":
        state_dir = f"{settings.run_dir or 'runs/' + settings.run_name}/clients"
    return replace(settings, compression=compression, training=training, state_dir=state_dir)
