"""Names and shapes of a model's tensors, without its weights: from ``config.json``, or from a number alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec, tensors_of
from distro_fed.model.base import base_model_folder
from distro_fed.model.packaged import SMOLLM2_NAME

_NUMBER = re.compile(r"(\d[\d_,]*(?:\.\d+)?(?:[eE]\+?\d+)?)([kKmMbBgG]?)")
_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_LEAST, _MOST = 10**5, 10**13
_TYPICAL_VOCABULARY = 32_000
#: model types of transformers whose tensors :func:`decoder_layout` lists
_DECODERS = ("llama", "mistral", "qwen2", "qwen3")

SMOLLM2_CONFIG: Mapping[str, Any] = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelShape:
    """All tensors of a model, tied weights once.

    Attributes
    ----------
    name : str
        As it was asked for.
    layout : Layout
        Every weight, in the order that a run of full fine-tuning has.
    exact : bool
        False if only the number of parameters is known and the shapes are those of a typical decoder.
    """

    name: str
    layout: Layout
    exact: bool

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.layout.numel


def model_shape(text: str) -> ModelShape:
    """Shapes of a model.

    Parameters
    ----------
    text : str
        A number of parameters (``"1.2e9"``, ``"135M"``, ``"1.2B"``), a model folder, ``"packaged:smollm2-135m"`` or
        a hub id whose files are in the local cache.

    Raises
    ------
    SettingsError
        If the number is out of range, or ``config.json`` cannot be read or lacks a key.
    ModelNotFound
        If it is neither a number nor a model on this machine.
    """
    number = _NUMBER.fullmatch(text.strip())
    if number and not Path(text).is_dir():
        parameters = float(re.sub("[_,]", "", number[1])) * _SUFFIX[number[2].lower()]
        return ModelShape(text, typical_layout(parameters), exact=False)
    if text == SMOLLM2_NAME:
        return ModelShape(text, decoder_layout(SMOLLM2_CONFIG), exact=True)
    folder = base_model_folder(text)
    config = _read_config(folder / "config.json")
    if config.get("model_type") in _DECODERS:
        return ModelShape(text, decoder_layout(config), exact=True)
    return ModelShape(text, _layout_by_transformers(folder), exact=True)


def decoder_layout(config: Mapping[str, Any]) -> Layout:
    """Tensors of a Llama, Mistral, Qwen2 or Qwen3 model, by its ``config.json``.

    Raises
    ------
    SettingsError
        If a size is missing, or is not a whole number in a sensible range.
    """

    def size(key: str, default: int | None = None, most: int = 2**31) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or not 1 <= value <= most:
            raise SettingsError(f"config.json has {key} = {value!r}; a whole number from 1 to {most} is needed")
        return value

    kind = config.get("model_type", "llama")
    hidden, inner, layers = size("hidden_size"), size("intermediate_size"), size("num_hidden_layers", most=10_000)
    heads = size("num_attention_heads")
    head = size("head_dim", 128 if kind == "qwen3" else max(1, hidden // heads))
    queries, keys = heads * head, size("num_key_value_heads", heads) * head
    biased = bool(config.get("attention_bias", False))
    linear = {
        "self_attn.q_proj": (queries, hidden, biased or kind == "qwen2"),
        "self_attn.k_proj": (keys, hidden, biased or kind == "qwen2"),
        "self_attn.v_proj": (keys, hidden, biased or kind == "qwen2"),
        "self_attn.o_proj": (hidden, queries, biased),
        **{
            f"mlp.{name}": (*shape, bool(config.get("mlp_bias", False)))
            for name, shape in (
                ("gate_proj", (inner, hidden)),
                ("up_proj", (inner, hidden)),
                ("down_proj", (hidden, inner)),
            )
        },
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if kind == "qwen3":
        norms |= {"self_attn.q_norm": head, "self_attn.k_norm": head}

    def specs() -> Iterator[TensorSpec]:
        yield TensorSpec("model.embed_tokens.weight", (size("vocab_size"), hidden), kind="embedding")
        if not config.get("tie_word_embeddings", False):
            yield TensorSpec("lm_head.weight", (size("vocab_size"), hidden), kind="matrix")
        yield TensorSpec("model.norm.weight", (hidden,), kind="vector")
        for layer in range(layers):
            prefix = f"model.layers.{layer}."
            for name, (rows, columns, has_bias) in linear.items():
                yield TensorSpec(f"{prefix}{name}.weight", (rows, columns), kind="matrix")
                if has_bias:
                    yield TensorSpec(f"{prefix}{name}.bias", (rows,), kind="vector")
            for name, length in norms.items():
                yield TensorSpec(f"{prefix}{name}.weight", (length,), kind="vector")

    return Layout(sorted(specs(), key=lambda spec: spec.name))


def typical_layout(parameters: float) -> Layout:
    """A Llama-like decoder of exactly so many parameters, for when only their number is known.

    One layer for every 64 channels, SwiGLU of 8/3 the width, tied embeddings of 32,000 tokens or somewhat more, to
    come out at the number. Sizes that depend on single matrices (``subspace``, ``lowrank``, ``tracking``, LoRA) are
    within a third of those of real models; ``dense``, ``quantized`` and ``topk`` hardly depend on shapes.

    Raises
    ------
    SettingsError
        If the number is below 100,000 or above 10^13.
    """
    if not _LEAST <= parameters <= _MOST:
        raise SettingsError(f"{parameters:,} parameters; a plan needs {_LEAST:,} to {_MOST:,}, such as 135M or 1.2e9")
    parameters = round(parameters)
    vocabulary = min(_TYPICAL_VOCABULARY, parameters // 128)
    width = 64
    while vocabulary * (width + 64) + (width + 64) // 64 * _layer_size(width + 64) < parameters:
        width += 64
    layers = max(1, (parameters - vocabulary * width - width) // _layer_size(width))
    vocabulary, odd = divmod(parameters - layers * _layer_size(width) - width, width)
    config = {
        "hidden_size": width, "intermediate_size": _inner(width), "num_hidden_layers": layers,
        "num_attention_heads": width // 64, "vocab_size": vocabulary, "tie_word_embeddings": True,
    }  # fmt: skip
    rest = [TensorSpec("rest", (odd,), kind="vector")] if odd else []
    return Layout([*decoder_layout(config), *rest])


def lora_layout(base: Layout, rank: int, modules: str = "all-linear") -> Layout:
    """Tensors of a LoRA adapter: A (rank, in) and B (out, rank) for every target (Hu et al., arXiv 2106.09685).

    Parameters
    ----------
    base : Layout
        All tensors of the model.
    rank : int
        At least 1.
    modules : str
        ``"all-linear"`` (every linear layer but the output head, as in peft), or names such as ``"q_proj,v_proj"``.

    Raises
    ------
    SettingsError
        If the rank is below 1, or a name fits no linear layer.
    """
    if rank < 1:
        raise SettingsError(f"LoRA rank is {rank}; use 1 or more")
    linear = {
        spec.name.removesuffix(".weight"): spec.shape
        for spec in base
        if spec.kind == "matrix" and spec.name.rpartition(".")[2] == "weight"
    }
    names = {module: module.rpartition(".")[2] for module in linear}
    if modules == "all-linear":
        chosen = [module for module in linear if names[module] not in ("lm_head", "embed_out")]
    else:
        wanted = [name.strip() for name in modules.split(",")]
        for name in wanted:
            if name not in names.values():
                raise SettingsError(
                    f"LoRA module {name!r} is no linear layer of this model; "
                    f"there are: {', '.join(sorted(set(names.values())))}, or all-linear"
                )
        chosen = [module for module in linear if names[module] in wanted]
    specs = [
        TensorSpec(f"base_model.model.{module}.lora_{side}.weight", shape, kind="matrix")
        for module in chosen
        for side, shape in (("A", (rank, linear[module][1])), ("B", (linear[module][0], rank)))
    ]
    return Layout(sorted(specs, key=lambda spec: spec.name))


def trained_layout(base: Layout, modules: str = "") -> Layout:
    """Tensors of full fine-tuning: all, or those of some modules (:func:`~distro_fed.layout.tensors_of`)."""
    chosen = set(tensors_of([spec.name for spec in base], modules))
    return Layout(spec for spec in base if spec.name in chosen)


def _inner(width: int) -> int:
    return 64 * round(width * 8 / 3 / 64)


def _layer_size(width: int) -> int:
    return 4 * width * width + 3 * width * _inner(width) + 2 * width


def _read_config(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SettingsError(f"{file} holds a {type(config).__name__}; the config of a model is an object")
    return config


def _layout_by_transformers(folder: Path) -> Layout:
    """Any other architecture: transformers builds the model without memory for its weights; takes some seconds."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from distro_fed.model.trainable import trainable_full

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        build: Any = AutoModelForCausalLM.from_config
        with torch.device("meta"):
            return trainable_full(build(config, dtype=torch.float32)).layout
    except (ValueError, KeyError, OSError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"the shapes of {folder} are not known ({error}); give the number of parameters instead, such as 135M"
        ) from error
