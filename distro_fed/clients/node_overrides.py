"""What the machine of an organisation decides for itself: members of one run may differ in hardware.

None of these settings changes what an update means, so whoever starts a run need not know the machines. They come from
the node's own config and win over the run's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from distro_fed.errors import SettingsError
from distro_fed.settings import RunSettings

#: node config key -> group of the settings in which the field of that name stands
_OVERRIDES = {
    "device": "training",
    "threads": "training",
    "bf16": "training",
    "gradient-checkpointing": "training",
    "per-device-train-batch-size": "training",
    "gradient-accumulation-steps": "training",
    "dtype": "model",
    "quantization": "model",
}
LOCAL_PROCESSES = "local-processes"


def with_node_overrides(settings: RunSettings, node_config: Mapping[str, object]) -> RunSettings:
    """Settings of a run as this machine carries them out.

    Parameters
    ----------
    settings : RunSettings
        Those of the run, completed.
    node_config : mapping
        ``device``, ``threads``, ``bf16``, ``gradient-checkpointing``, ``per-device-train-batch-size``,
        ``gradient-accumulation-steps``, ``dtype`` and ``quantization`` are looked at.

    Raises
    ------
    SettingsError
        A value is of the wrong type or out of range, or the run does not let members differ in it.
    """
    given = {key: node_config[key] for key in _OVERRIDES if key in node_config}
    if not given:
        return settings
    changed = settings
    for key, value in given.items():
        group, name = getattr(changed, _OVERRIDES[key]), key.replace("-", "_")
        wanted = type(getattr(group, name))
        if type(value) is not wanted:
            raise SettingsError(f"node config {key} = {value!r} is a {type(value).__name__}; {_example(key, wanted)}")
        changed = replace(changed, **{_OVERRIDES[key]: replace(group, **{name: value})})
    _check_base(settings, changed)
    try:
        return changed.completed()
    except SettingsError as error:
        raise SettingsError(f"the node config does not go with the run: {error}") from None


def examples_per_step(settings: RunSettings) -> int:
    """Examples of one optimizer step: batch size times accumulation."""
    training = settings.training
    return training.per_device_train_batch_size * training.gradient_accumulation_steps


def local_processes(node_config: Mapping[str, object], settings: RunSettings) -> int:
    """How many processes of this machine share the training of one member (``local-processes``, by default 1).

    Raises
    ------
    SettingsError
        It is not a positive integer, or does not divide the micro-batches of a step.
    """
    count = node_config.get(LOCAL_PROCESSES, 1)
    if type(count) is not int or count < 1:
        raise SettingsError(f"node config {LOCAL_PROCESSES} = {count!r}; a whole number from 1 on is needed")
    accumulation = settings.training.gradient_accumulation_steps
    if accumulation % count:
        raise SettingsError(
            f"node config {LOCAL_PROCESSES} = {count} with gradient-accumulation-steps = {accumulation}: processes "
            "share the micro-batches of a step, so it must be a multiple; give the node a smaller "
            "per-device-train-batch-size and more gradient-accumulation-steps, their product stays the same"
        )
    return count


def _check_base(run: RunSettings, own: RunSettings) -> None:
    """The frozen base may be held in another format only where nothing that is exchanged depends on its bits."""
    for key in ("dtype", "quantization"):
        asked, value = getattr(run.model, key), getattr(own.model, key)
        if value == asked:
            continue
        if run.model.mode != "lora":
            raise SettingsError(
                f"node config {key} = {value!r} in a run of mode = {run.model.mode!r} and {key} = {asked!r}: there the "
                "base model itself is trained and exchanged, so all members hold it alike: leave it out of the node's"
            )
        if run.model.lora_factors == "core":
            raise SettingsError(
                f"node config {key} = {value!r} in a run of lora-factors = 'core' and {key} = {asked!r}: the fixed "
                "factors are found from the base model's bits, so all members hold it alike: leave it out of the node's"
            )


def _example(key: str, wanted: type) -> str:
    example = {bool: "true", int: "2", str: '"..."'}[wanted]
    return f"a {wanted.__name__} is needed: --node-config '{key}={example}'"
