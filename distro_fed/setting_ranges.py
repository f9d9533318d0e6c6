"""What values a single setting may have; what goes together is checked in :mod:`distro_fed.setting_combinations`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from distro_fed.errors import SettingsError
from distro_fed.setting_groups import Value

_CHOICES: dict[str, tuple[str, ...]] = {
    "mode": ("lora", "full"),
    "dtype": ("float32", "bfloat16", "float16"),
    "dense-dtype": ("float32", "bfloat16", "float16"),
    "quantization": ("none", "8bit", "4bit"),
    "compressor": (
        "auto",
        "dct-topk",
        "topk",
        "quantized",
        "subspace",
        "lowrank",
        "tracking",
        "tracking-topk",
        "dense",
    ),
    "selection": ("global", "chunk"),
    "scales": ("auto", "own", "common"),
    "lora-factors": ("both", "b", "alternating", "core"),
    "optim": ("adamw", "sgd", "muon"),
    "optimizer-state": ("fresh", "kept"),
    "aggregation": ("mean", "contributors"),
    "lr-scheduler-type": ("constant", "linear", "cosine"),
}
_AT_LEAST: dict[str, float] = {
    "seed": 0, "max-length": 2, "max-train-examples": 0, "max-test-examples": 0, "local-steps": 1,
    "per-device-train-batch-size": 1, "gradient-accumulation-steps": 1, "learning-rate": 0, "warmup-steps": 0,
    "weight-decay": 0, "max-grad-norm": 0, "threads": 0, "density": 0, "bits": 0, "rank": 0, "downlink-density": 0,
    "downlink-bits": 0, "num-server-rounds": 1, "fraction-train": 0, "min-train-nodes": 1, "min-available-nodes": 1,
    "save-rounds": 0, "quorum": 0, "round-timeout": 0, "start-timeout": 0, "evaluate-every": 0, "adam-beta1": 0,
    "adam-beta2": 0, "momentum": 0, "value-bits": 1, "final-rank": 0, "basis-rounds": 1, "error-feedback-decay": 0,
    "basis-decay": 0, "outer-learning-rate": 0, "outer-momentum": 0, "metrics-port": 0, "stage-timeout": 0,
    "weight-unit": 1,
}  # fmt: skip
_AT_MOST: dict[str, float] = {
    "bits": 8, "downlink-bits": 8, "density": 1, "downlink-density": 1, "fraction-train": 1, "quorum": 1,
    "seed": 2**63 - 1, "adam-beta1": 0.999999, "adam-beta2": 0.999999,
    "momentum": 0.999999, "value-bits": 2, "error-feedback-decay": 1, "basis-decay": 1, "outer-momentum": 0.999999,
    "metrics-port": 65535,
}  # fmt: skip
_PATTERNS: dict[str, str] = {
    "run-name": r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
    "trained-modules": r"|[^\s,]+(\s*,\s*[^\s,]+)*",
    "device": r"auto|cpu|mps|(cuda|xpu)(:\d+)?",
    "report-to": r"none|(tensorboard|wandb|mlflow)(, ?(tensorboard|wandb|mlflow))*",
}


def check_values(settings: Mapping[str, Value]) -> None:
    """Check every value by itself.

    Raises
    ------
    SettingsError
        A value is not among the choices, out of range, not finite, or of the wrong form.
    """
    for key, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"setting {key} = {value} is not a finite number")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise SettingsError(f"setting {key} = {value!r}; choose one of {', '.join(_CHOICES[key])}")
        if key in _AT_LEAST and not isinstance(value, str) and value < _AT_LEAST[key]:
            raise SettingsError(f"setting {key} = {value!r}; it must be at least {_AT_LEAST[key]:g}")
        if key in _AT_MOST and not isinstance(value, str) and value > _AT_MOST[key]:
            raise SettingsError(f"setting {key} = {value!r}; it must be at most {_AT_MOST[key]:g}")
    for key, pattern in _PATTERNS.items():
        if not re.fullmatch(pattern, str(settings[key])):
            raise SettingsError(f"setting {key} = {settings[key]!r} does not match {pattern}")
    _check_initial_scale(str(settings["initial-scale"]))


def _check_initial_scale(value: str) -> None:
    if value in ("measured", "adamw"):
        return
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise SettingsError(f"setting initial-scale = {value!r}; give 'measured', 'adamw' or a number above 0")
