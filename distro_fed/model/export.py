"""Results as folders that plain peft and transformers load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distro_fed.errors import ModelError, ModelNotFound
from distro_fed.files import atomic_folder
from distro_fed.model.base import base_model_folder, load_base_model
from distro_fed.model.quiet import no_progress_bars

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_adapter(
    folder: str | Path,
    adapted: PeftModel,
    *,
    base_name: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    replace: bool = False,
) -> None:
    """Save an adapter so that ``PeftModel.from_pretrained(base, folder)`` loads it.

    Parameters
    ----------
    folder : str or Path
        Appears complete or not at all.
    adapted : peft.PeftModel
        ``Trainable.model`` of an adapter.
    base_name : str
        What the adapter says it was trained on; :func:`merge_adapter` loads it by this name.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        Saved beside the adapter.
    replace : bool
        Whether an old folder may be replaced.

    Raises
    ------
    FileExistsError
        If ``folder`` exists and ``replace`` is false.
    """
    for config in adapted.peft_config.values():
        config.base_model_name_or_path = base_name
    from distro_fed.model.lora_factors import folded_cores

    with atomic_folder(folder, replace=replace) as beside, folded_cores(adapted):
        # save_embedding_layers=False: otherwise peft asks the hub whether the vocabulary was resized
        adapted.save_pretrained(str(beside), safe_serialization=True, save_embedding_layers=False)
        if tokenizer is not None:
            tokenizer.save_pretrained(beside)


def save_full_model(
    folder: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    replace: bool = False,
) -> None:
    """Save a model so that ``AutoModelForCausalLM.from_pretrained(folder)`` loads it, in its present dtype.

    Parameters and errors are those of :func:`save_adapter`.
    """
    with atomic_folder(folder, replace=replace) as beside, no_progress_bars():
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)


def merge_adapter(
    adapter_folder: str | Path,
    output_folder: str | Path,
    *,
    dtype: str = "bfloat16",
    base: str | None = None,
    allow_download: bool = False,
    replace: bool = False,
) -> None:
    """Merge an adapter into its base model and save the result as an ordinary full model.

    Parameters
    ----------
    adapter_folder : str or Path
        As written by :func:`save_adapter`.
    output_folder : str or Path
        Appears complete or not at all.
    dtype : str
        Dtype of base and result.
    base : str, optional
        Base model by name; by default the one that the adapter names.
    allow_download, replace : bool
        As in :func:`~distro_fed.model.base.load_base_model` and :func:`save_adapter`.

    Raises
    ------
    ModelNotFound
        If the adapter or its base model is not there.
    ModelError
        If the base is quantised (merging would round the adapter away), the adapter does not fit it, or its
        method cannot be merged.
    """
    from peft import PeftModel
    from safetensors import SafetensorError

    name = base or adapter_base_name(adapter_folder)
    config = json.loads((base_model_folder(name, allow_download) / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method")
        raise ModelError(
            f"base model {name!r} is quantised ({method}): an adapter merged into it would be rounded away; name the "
            "16-bit original as base"
        )
    loaded = load_base_model(name, dtype=dtype, allow_download=allow_download)
    try:
        adapted = PeftModel.from_pretrained(loaded.model, str(adapter_folder))
        if config.get("tie_word_embeddings", False) and _adapts_embeddings(adapted):
            raise ValueError(
                "it adapts the embedding or the head, which this base ties to each other: merging one would change "
                "the other too; use the adapter as it is"
            )
        merged = adapted.merge_and_unload(safe_merge=True)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError, OSError, SafetensorError) as error:
        raise ModelError(f"adapter {adapter_folder} cannot be merged into {name!r}: {error}") from error
    save_full_model(output_folder, merged, loaded.tokenizer, replace=replace)


def _adapts_embeddings(adapted: PeftModel) -> bool:
    from peft.tuners.tuners_utils import BaseTunerLayer

    base: Any = adapted.get_base_model()
    return any(
        isinstance(module, BaseTunerLayer) for module in (base.get_input_embeddings(), base.get_output_embeddings())
    )


def adapter_base_name(adapter_folder: str | Path) -> str:
    """Name of the base model that an adapter folder was trained on.

    Raises
    ------
    ModelNotFound
        If the folder is not an adapter.
    """
    config = Path(adapter_folder) / "adapter_config.json"
    if not config.is_file():
        raise ModelNotFound(f"{adapter_folder} is not an adapter: it has no adapter_config.json")
    try:
        name = json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelNotFound(f"{config} is not the configuration of an adapter: {error!r}") from error
    if not name:
        raise ModelNotFound(f"{config} does not say what base model it belongs to: name it with base")
    return str(name)
