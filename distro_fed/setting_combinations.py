"""Which settings do not go together, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distro_fed.errors import SettingsError
from distro_fed.presets import DEFAULT_COMPRESSOR, SELECTING, TRAINED_INSIDE

if TYPE_CHECKING:
    from distro_fed.settings import RunSettings

#: compressors whose updates are integers with one scale a tensor
_SCALED = ("quantized", "subspace", "lowrank", "tracking")
#: compressors whose space is another one in every round
_CHANGING = ("subspace", "lowrank")


def check_combinations(settings: RunSettings) -> None:
    """Check settings whose values are in range each by itself.

    Raises
    ------
    SettingsError
        Two of them do not go together.
    """
    compression, mode = settings.compression, settings.model.mode
    name = compressor_name(settings)
    if name in TRAINED_INSIDE and mode != "full":
        raise SettingsError(
            f"compressor = {name!r} trains inside the weight matrices of the base model; it needs mode = 'full' "
            "(for mode = 'lora' use 'quantized', 'topk', 'dct-topk' or 'dense')"
        )
    if mode == "full" and settings.model.dtype == "float16" and name not in TRAINED_INSIDE:
        raise SettingsError(
            "dtype = 'float16' with mode = 'full': AdamW divides by numbers that are 0 in float16; take dtype = "
            f"'bfloat16' or 'float32', or a compressor that trains in float32: {', '.join(TRAINED_INSIDE)}"
        )
    if settings.model.trained_modules and mode != "full":
        raise SettingsError(
            f"trained-modules = {settings.model.trained_modules!r} with mode = {mode!r}: it chooses among the weights "
            "of the model; set peft.target-modules, or mode = 'full'"
        )
    _check_quantization(settings)
    if compression.error_feedback and name == "subspace":
        raise SettingsError(
            f"error-feedback = true with compressor = {name!r}: its basis changes every round, so what one round "
            "did not send has no place in the next; set error-feedback = false or choose another compressor"
        )
    if settings.training.optimizer_state == "kept" and name in TRAINED_INSIDE:
        raise SettingsError(
            f"optimizer-state = 'kept' with compressor = {name!r}: its coefficients start at 0 in every round, so "
            "their moments have no place in the next; take 'fresh' or another compressor"
        )
    if compression.server_residual and name in _CHANGING:
        raise SettingsError(
            f"server-residual = true with compressor = {name!r}: its basis changes every round; set it to false, "
            "and downlink-bits = 2 or more if the aggregated update should lose less"
        )
    _check_lora_factors(settings)
    _check_aggregation(settings)
    _check_security(settings)
    _check_scales(settings)
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
        for kept, used in (
            ("outer-momentum", settings.federation.outer_momentum > 0),
            ("compressor = 'lowrank'", settings.compression.compressor == "lowrank"),
        ):
            if used:
                raise SettingsError(
                    f"lora-factors = 'alternating' with {kept}: every round sends other tensors, so what is kept of "
                    "one has no place in the next; leave it out or take lora-factors = 'b'"
                )


def _check_aggregation(settings: RunSettings) -> None:
    federation, name = settings.federation, compressor_name(settings)
    if federation.aggregation == "contributors" and name not in SELECTING:
        raise SettingsError(
            f"aggregation = 'contributors' with compressor = {name!r}, of which every member sends every coefficient; "
            f"take 'mean', which is the same there, or one of the compressors {', '.join(SELECTING)}"
        )
    if not federation.outer_learning_rate:
        raise SettingsError("outer-learning-rate = 0.0 would never change the model; 1 applies the mean as it is")
    if federation.outer_momentum and name in _CHANGING:
        raise SettingsError(
            f"outer-momentum = {federation.outer_momentum:g} with compressor = {name!r}: its space changes every "
            "round, so what one round has moved has no place in the next; set it to 0 or choose another compressor"
        )


def _check_security(settings: RunSettings) -> None:
    if not settings.security.secure_aggregation:
        return
    name = compressor_name(settings)
    if name not in (*_SCALED, "dense"):
        raise SettingsError(
            f"secure-aggregation = true with compressor = {name!r}: only integers of a fixed number and size can be "
            "summed under masks; take 'quantized' or 'dense', or in mode 'full' 'subspace', 'lowrank' or 'tracking'"
        )
    if settings.federation.fraction_train < 1:
        raise SettingsError(
            f"secure-aggregation = true with fraction-train = {settings.federation.fraction_train:g}: the server could "
            "compare the sums of different cohorts; set it to 1"
        )


def _check_scales(settings: RunSettings) -> None:
    name, scales, secure = compressor_name(settings), scales_of(settings), settings.security.secure_aggregation
    if scales == "common" and name not in _SCALED and not secure:
        raise SettingsError(
            f"scales = 'common' with compressor = {name!r}: only integers with one scale a tensor can share it; take "
            "'quantized', 'subspace', 'lowrank' or 'tracking', or scales = 'own'"
        )
    if secure and scales == "own":
        raise SettingsError(
            "scales = 'own' with secure-aggregation = true: the server learns sums only, and the mean scale times the "
            "mean code is not the mean of the updates; take 'common' or 'auto'"
        )
    if scales == "common" and settings.compression.initial_scale == "adamw":
        optim = settings.training.optim
        if optim != "adamw" or name == "lowrank":
            raise SettingsError(
                f"initial-scale = 'adamw' with optim = {optim!r} and compressor = {name!r}: a rule for the values that "
                "AdamW trains; take 'measured', or a number"
            )


def scales_of(settings: RunSettings) -> str:
    """Whose scales a run uses: ``own`` or ``common``."""
    scales = settings.compression.scales
    return scales if scales != "auto" else "common" if settings.security.secure_aggregation else "own"


def compressor_name(settings: RunSettings) -> str:
    """Compressor of a run, also where it is left to the mode."""
    name = settings.compression.compressor
    return DEFAULT_COMPRESSOR[settings.model.mode] if name == "auto" else name
