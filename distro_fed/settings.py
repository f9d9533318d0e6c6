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
from distro_fed.presets import COMPRESSOR_PRESETS, DEFAULT_COMPRESSOR, LEARNING_RATES, PIPELINES
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
    #: a whole pipeline by name: ``lora-default``, ``full-default``, ``stateless`` or ``secure``. It fills in what is
    #: not given or stands at its default; empty: no preset
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
        _check(self)
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


def _check(settings: RunSettings) -> None:
    check_values(settings.flat())
    compression, mode = settings.compression, settings.model.mode
    if compression.compressor == "subspace" and mode != "full":
        raise SettingsError(
            "compressor = 'subspace' trains inside the weight matrices of the base model; it needs mode = 'full' "
            "(for mode = 'lora' use 'quantized', 'topk', 'dct-topk' or 'dense')"
        )
    if mode == "full" and settings.model.dtype == "float16" and _compressor_name(settings) != "subspace":
        raise SettingsError(
            "dtype = 'float16' with mode = 'full': AdamW divides by numbers that are 0 in float16; take dtype = "
            "'bfloat16' or 'float32', or compressor = 'subspace', which trains in float32"
        )
    _check_quantization(settings)
    if compression.error_feedback and _compressor_name(settings) == "subspace":
        raise SettingsError(
            "error-feedback = true with compressor = 'subspace': its basis changes every round, so what one round "
            "did not send has no place in the next; set error-feedback = false or choose another compressor"
        )
    if settings.training.optimizer_state == "kept" and _compressor_name(settings) == "subspace":
        raise SettingsError(
            "optimizer-state = 'kept' with compressor = 'subspace': its coefficients are others in every round, so "
            "their moments have no place in the next; take 'fresh' or another compressor"
        )
    if compression.server_residual and (name := _compressor_name(settings)) in ("subspace", "lowrank"):
        raise SettingsError(
            f"server-residual = true with compressor = {name!r}: its basis changes every round; set it to false, "
            "and downlink-bits = 2 or more if the aggregated update should lose less"
        )
    _check_lora_factors(settings)
    _check_aggregation(settings)
    _check_security(settings)
    if settings.training.optim == "sgd" and not settings.training.learning_rate:
        raise SettingsError("optim = 'sgd' has no preset: those of learning-rate are for AdamW; set learning-rate")


def _check_quantization(settings: RunSettings) -> None:
    quantization, mode, factors = settings.model.quantization, settings.model.mode, settings.model.lora_factors
    if quantization != "none" and (mode != "lora" or factors == "core"):
        raise SettingsError(
            f"quantization = {quantization!r} with mode = {mode!r} and lora-factors = {factors!r}: a base in few "
            "bits can be neither trained nor taken apart; take 'none', or mode = 'lora' with other lora-factors"
        )


def _check_lora_factors(settings: RunSettings) -> None:
    factors, method = settings.model.lora_factors, str(settings.model.peft.get("type", "LORA")).upper()
    if factors != "both" and (settings.model.mode != "lora" or method != "LORA"):
        raise SettingsError(
            f"lora-factors = {factors!r} with mode = {settings.model.mode!r} and peft.type = {method!r}: it says what "
            "of a LoRA pair is trained; take mode = 'lora' without peft.type, or lora-factors = 'both'"
        )
    if factors == "alternating":
        for key, value in (
            ("server-residual", settings.compression.server_residual),
            ("outer-momentum", settings.federation.outer_momentum),
            ("compressor", settings.compression.compressor == "lowrank" and "lowrank"),
        ):
            if value:
                raise SettingsError(
                    f"lora-factors = 'alternating' with {key} = {value}: every round sends other tensors, so what is "
                    "kept of one has no place in the next; leave it out or take lora-factors = 'b'"
                )


def _check_aggregation(settings: RunSettings) -> None:
    federation, name = settings.federation, _compressor_name(settings)
    if federation.aggregation == "contributors" and name not in ("topk", "dct-topk"):
        raise SettingsError(
            f"aggregation = 'contributors' with compressor = {name!r}, of which every member sends every coefficient; "
            "take 'mean', which is the same there, or compressor = 'topk' or 'dct-topk'"
        )
    if not federation.outer_learning_rate:
        raise SettingsError("outer-learning-rate = 0.0 would never change the model; 1 applies the mean as it is")
    if federation.outer_momentum and name in ("subspace", "lowrank"):
        raise SettingsError(
            f"outer-momentum = {federation.outer_momentum:g} with compressor = {name!r}: its space changes every "
            "round, so what one round has moved has no place in the next; set it to 0 or choose another compressor"
        )


def _check_security(settings: RunSettings) -> None:
    if not settings.security.secure_aggregation:
        return
    name = _compressor_name(settings)
    if name not in ("quantized", "subspace", "lowrank"):
        raise SettingsError(
            f"secure-aggregation = true with compressor = {name!r}: only integers of a fixed number and size can be "
            "summed under masks; take 'quantized' (bits = 8 is nearest to 'dense'), or in mode 'full' 'subspace' or "
            "'lowrank'"
        )
    if settings.federation.fraction_train < 1:
        raise SettingsError(
            f"secure-aggregation = true with fraction-train = {settings.federation.fraction_train:g}: the server could "
            "compare the sums of different cohorts; set it to 1"
        )


def _compressor_name(settings: RunSettings) -> str:
    name = settings.compression.compressor
    return DEFAULT_COMPRESSOR[settings.model.mode] if name == "auto" else name


def _complete(settings: RunSettings) -> RunSettings:
    compression = replace(settings.compression, compressor=_compressor_name(settings))
    name = compression.compressor
    for key, preset in COMPRESSOR_PRESETS[name].items():
        if not getattr(compression, key):
            compression = replace(compression, **{key: preset})
    compression = replace(
        compression,
        downlink_density=compression.downlink_density or compression.density,
        downlink_bits=compression.downlink_bits or compression.bits,
    )
    training = settings.training
    if not training.learning_rate:
        family = "subspace" if name == "subspace" else settings.model.mode
        family = "core" if settings.model.lora_factors == "core" else family
        training = replace(training, learning_rate=LEARNING_RATES[family])
    state_dir = settings.state_dir
    if state_dir == "auto":
        state_dir = f"{settings.run_dir or 'runs/' + settings.run_name}/clients"
    return replace(settings, compression=compression, training=training, state_dir=state_dir)
