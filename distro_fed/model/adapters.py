"""Adapters by peft: any method that it can build, under the field names of its own configuration class."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distro_fed.errors import SettingsError
from distro_fed.model.trainable import Trainable

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn
    from transformers import PreTrainedModel

# Fields of every PeftConfig that follow from the run and are not for the user to choose.
_OWN_FIELDS = frozenset(
    ("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode")
)
_LORA_DEFAULTS: Mapping[str, object] = {
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "target_modules": "all-linear",
}
_SCALARS = (bool, int, float, str)
#: methods whose forward pass is told with every example which of several tasks it belongs to
_NEED_TASK_IDS = ("MULTITASK_PROMPT_TUNING", "POLY")


def build_adapter(
    model: PreTrainedModel, options: Mapping[str, object], seed: int, lora_factors: str = "both"
) -> Trainable:
    """Put an adapter on a base model; everything else of the model is frozen.

    The values at the start depend on ``seed`` alone, so all members of a run begin with the same adapter
    without sending it. The state of torch's own random generator is left as it was.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Base model on the CPU. peft changes it in place.
    options : mapping of str to object
        ``type`` is the name of a PEFT method (default ``"LORA"``); all other keys are fields of that
        method's configuration class, in snake_case. A list may be given as ``"q_proj,v_proj"``, a dict or
        nested list as JSON. LORA has ``r=8``, ``lora_alpha=16``, ``lora_dropout=0`` and
        ``target_modules="all-linear"`` unless said otherwise.
    seed : int
        Seed of the adapter's random start.
    lora_factors : str
        ``"both"``, or which part of every LoRA pair is trained: ``"b"``, ``"alternating"`` or ``"core"``
        (:mod:`distro_fed.model.lora_factors`).

    Returns
    -------
    Trainable
        Over the tensors that the adapter trains, named as in its saved file. ``.model`` is the
        ``PeftModel``; values are loaded by ``.write``.

    Raises
    ------
    SettingsError
        If the method or a field is unknown, peft refuses a value, or the adapter has no pairs for ``lora_factors``.
    """
    config = adapter_config(options)
    if lora_factors != "both" and config.peft_type.value != "LORA":
        raise SettingsError(f"lora-factors = {lora_factors!r} with peft.type = {config.peft_type.value!r}: take LORA")
    from peft import get_peft_model

    base = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}

    with _seeded(seed):
        try:
            adapted = get_peft_model(model, config)
        except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
            raise SettingsError(
                f"peft cannot put {config.peft_type.value} on {type(model).__name__} with {dict(options)!r}: {error}; "
                "check the peft.* settings (peft.target-modules names the modules)"
            ) from error
    return _trainable(adapted, base, seed, lora_factors)


def _trainable(adapted: PeftModel, base: set[int], seed: int, factors: str) -> Trainable:
    """What of the adapter is trained; ``base`` holds the ids of the base model's own tensors."""
    from distro_fed.model import lora_factors

    turns: tuple[set[int], ...] = ()
    if factors == "b":
        lora_factors.train_b_only(adapted, seed)
    elif factors == "core":
        lora_factors.train_core(adapted, seed)
    elif factors == "alternating":
        turns = lora_factors.sides_in_turn(adapted)
    parameters = _trained_parameters(adapted)
    frozen = [
        (name, tensor)
        for name, tensor in (*adapted.named_parameters(), *adapted.named_buffers())
        if not tensor.requires_grad and id(tensor) not in base
    ]
    return Trainable(
        adapted,
        parameters,
        turns=[[name for name, parameter in parameters.items() if id(parameter) in turn] for turn in turns],
        frozen_digest=lora_factors.frozen_digest(frozen),
    )


def adapter_config(options: Mapping[str, object]) -> Any:
    """The PEFT configuration object that :func:`build_adapter` uses for ``options``."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, TaskType

    classes = {peft_type.value: config for peft_type, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    method = str(options.get("type", "LORA")).upper()
    if method not in classes:
        raise SettingsError(f"unknown adapter type {method!r}{_near(method, classes)}")
    if method in _NEED_TASK_IDS:
        raise SettingsError(
            f"peft.type = {method!r} learns several tasks and needs to be told the task of every example, which a run "
            "does not know: take another method, such as LORA"
        )
    config_class = classes[method]
    names = {field.name for field in dataclasses.fields(config_class)} - _OWN_FIELDS
    hints = typing.get_type_hints(config_class)
    values: dict[str, Any] = dict(_LORA_DEFAULTS) if method == "LORA" else {}
    for name, value in options.items():
        if name == "type":
            continue
        if name in _OWN_FIELDS:
            raise SettingsError(f"peft.{name} is set by the run itself: remove it")
        if name not in names:
            raise SettingsError(f"{config_class.__name__} has no field {name!r}{_near(name, names)}")
        values[name] = _converted(name, value, hints[name])
    try:
        return config_class(task_type=TaskType.CAUSAL_LM, **values)
    except (ValueError, TypeError, ImportError) as error:
        raise SettingsError(f"peft refuses {method} with {values!r}: {error}") from error


def _trained_parameters(adapted: PeftModel) -> dict[str, nn.Parameter]:
    """What the adapter trains, each once, by its name in the saved adapter."""
    from peft import get_peft_model_state_dict

    # Without save_embedding_layers=False peft asks the hub whether the vocabulary was resized.
    saved = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    names = {tensor.data_ptr(): name for name, tensor in saved.items()}
    return {
        # Prompt encoders save what they compute, not what they train: these keep their own name.
        names.get(parameter.data_ptr(), name.replace(".default", "")): parameter
        for name, parameter in adapted.named_parameters()
        if parameter.requires_grad
    }


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reset the generators of accelerators, which fork_rng does not restore here
        torch.default_generator.manual_seed(seed)
        yield


def _converted(name: str, value: object, hint: object) -> object:
    """A flat setting as the type that the configuration field wants."""
    accepted = set(_origins(hint))
    if isinstance(value, str) and value[:1] in ("[", "{") and accepted & {list, dict}:
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise SettingsError(f"peft.{name} looks like JSON but is not: {value!r} ({error})") from error
    elif isinstance(value, str) and list in accepted and _is_list(value, str in accepted):
        value = [int(item) if item.isdecimal() else item for item in re.split(r"\s*,\s*", value.strip())]
    if isinstance(value, int) and float in accepted and not isinstance(value, bool):
        return value
    if accepted <= {*_SCALARS, type(None)} and type(value) not in accepted:
        wanted = " or ".join(sorted(kind.__name__ for kind in accepted))
        raise SettingsError(f"peft.{name} is {value!r} ({type(value).__name__}), expected {wanted}")
    return value


def _is_list(text: str, may_be_text: bool) -> bool:
    # peft reads a plain string as a regular expression over whole module paths, so that "q_proj" alone
    # would match nothing; a single name is meant as a list of one.
    if not may_be_text or "," in text:
        return True
    return re.fullmatch(r"[\w.]+", text) is not None


def _origins(hint: object) -> Iterator[type]:
    """The plain types that an annotation accepts: Union, Optional and Literal taken apart."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _origins(part)
    elif origin is typing.Literal:
        yield from {type(choice) for choice in typing.get_args(hint)}
    elif isinstance(origin or hint, type):
        yield typing.cast(type, origin or hint)


def _near(word: str, known: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"
