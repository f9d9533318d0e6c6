"""The base model: public weights, named by a folder, a packaged name or a hub id, and by a digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distro_fed.errors import ModelNotFound, SettingsError
from distro_fed.layout import DTYPES
from distro_fed.model.packaged import PREFIX, packaged_model_folder
from distro_fed.model.published_weights import published_digest
from distro_fed.model.quantization import quantized_loading, unavailable
from distro_fed.model.quiet import no_progress_bars

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Weights as pickles are not read: a pickle runs code.
_HUB_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A loaded base model.

    Attributes
    ----------
    name : str
        The name it was asked for by.
    digest : str
        Identity of the weights as published (:mod:`.published_weights`), 32 hex characters.
    model : transformers.PreTrainedModel
        In eval mode, on the CPU; a quantised one on its device.
    tokenizer : transformers.PreTrainedTokenizerBase
        As the model's folder has it.
    """

    name: str
    digest: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_base_model(
    name: str,
    *,
    dtype: str = "float32",
    allow_download: bool = False,
    quantization: str = "none",
    device: str = "cpu",
) -> BaseModel:
    """Load a causal language model and its tokenizer.

    Parameters
    ----------
    name : str
        A folder, ``"packaged:smollm2-135m"``, or a hub id.
    dtype : str
        ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    allow_download : bool
        Whether a hub id may be fetched. Without it only the local hub cache is looked at, and no
        connection is opened.
    quantization : str
        ``"none"``, ``"8bit"`` or ``"4bit"`` (:mod:`.quantization`).
    device : str
        Where a quantised model is loaded to.

    Raises
    ------
    SettingsError
        If ``dtype`` is not one of the three.
    ModelNotFound
        If the model is not on this machine or is not complete; the message says what to run or set.
    QuantizationUnavailable
        If this machine cannot hold it in so few bits.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if dtype not in DTYPES:
        raise SettingsError(f"dtype is {dtype!r}; a base model is loaded in one of {', '.join(DTYPES)}")
    folder = base_model_folder(name, allow_download)
    digest = published_digest(folder)
    few_bits = {} if quantization == "none" else quantized_loading(quantization, dtype, device)
    try:
        with no_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True,
                output_loading_info=True, **few_bits,
            )  # fmt: skip
        model, loading = loaded
        if loading["missing_keys"]:
            # transformers fills them at random, differently at each member
            raise ValueError(f"its weights lack {sorted(loading['missing_keys'])[0]!r}")
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        if few_bits:
            raise unavailable(quantization, device, error) from error
        raise ModelNotFound(
            f"model {name!r} cannot be loaded from {folder} ({error}): the folder needs config.json, "
            "safetensors weights of a causal language model and a tokenizer"
        ) from error
    model.config._name_or_path = name
    return BaseModel(name=name, digest=digest, model=model, tokenizer=tokenizer)


def base_model_folder(name: str, allow_download: bool = False) -> Path:
    """Folder in which the files of a base model lie; parameters and errors as :func:`load_base_model`."""
    if name.startswith(PREFIX):
        return packaged_model_folder(name)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            adapter = (path / "adapter_config.json").is_file()
            raise ModelNotFound(
                f"{path} is an adapter, not a base model: name the model it was trained on"
                if adapter
                else f"{path} has no config.json: it is not the folder of a model"
            )
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=not allow_download, allow_patterns=list(_HUB_PATTERNS)))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError) as error:
        if allow_download:
            way_out = f"the hub did not give it ({error})"
        else:
            way_out = f"run `hf download {name}`, set allow-download = true, or name a folder"
        raise ModelNotFound(
            f"model {name!r} is not a folder, not a packaged model and not in the hub cache {HF_HUB_CACHE}: {way_out}"
        ) from error
