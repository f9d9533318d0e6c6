"""The trainable tensors that a run's settings ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distro_fed.model.adapters import build_adapter
from distro_fed.model.base import load_base_model
from distro_fed.model.trainable import Trainable, trainable_full
from distro_fed.settings import RunSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class LoadedTrainable:
    """Trainable tensors at their initial values, with what belongs to them.

    Attributes
    ----------
    trainable : Trainable
        Of the adapter (``lora``), or the weights themselves (``full``); ``trainable.model`` computes.
    tokenizer : transformers.PreTrainedTokenizerBase
    base_digest : str
        Identity of what is frozen (hex): the base model, and behind a plus what an adapter has that is not trained.
    parameters : int
        Parameters of the base model, tied weights once.
    """

    trainable: Trainable
    tokenizer: PreTrainedTokenizerBase
    base_digest: str
    parameters: int


def load_trainable(settings: RunSettings, *, quantization: str = "none", device: str = "cpu") -> LoadedTrainable:
    """Load the base model and put the run's mode on it; the same at server and clients.

    Parameters
    ----------
    settings : RunSettings
    quantization : str
        Of the base at a member that computes with it; the server, which does not, holds it as ``dtype`` says.
    device : str
        Where a quantised base is loaded to.

    Raises
    ------
    ModelError, SettingsError
    """
    base = load_base_model(
        settings.model.base_model,
        dtype=settings.model.dtype,
        allow_download=settings.model.allow_download,
        quantization=quantization,
        device=device,
    )
    parameters = sum(parameter.numel() for parameter in base.model.parameters())
    if settings.model.mode == "full":
        trainable = trainable_full(base.model, settings.model.trained_modules)
    else:
        trainable = build_adapter(base.model, settings.model.peft, settings.seed, settings.model.lora_factors)
    digest = f"{base.digest}+{trainable.frozen_digest}" if trainable.frozen_digest else base.digest
    return LoadedTrainable(trainable, base.tokenizer, digest, parameters)
