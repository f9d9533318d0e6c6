"""What a client does out of the box: fine-tune the run's base model on the organisation's text."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distro_fed.agreement import Agreement
from distro_fed.clients.data_source import DataSource, data_source
from distro_fed.clients.task import EvaluateResult, RoundInfo, TrainResult
from distro_fed.model.configured import load_trainable
from distro_fed.settings import RunSettings, TrainingSettings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from distro_fed.clients.train_locally import LocalTraining
    from distro_fed.data.tokenize import Example
    from distro_fed.model.trainable import Trainable


log = logging.getLogger("distro_fed")


@dataclass(frozen=True, slots=True)
class _Corpus:
    train: list[Example]
    test: list[Example]
    columns: tuple[str, ...]


class FineTuning:
    """Causal language modelling; a :class:`~distro_fed.clients.task.LocalTask`.

    Holds one tokenizer, and the tokenised text of each organisation that this process has played.
    """

    def __init__(self) -> None:
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._corpora: dict[DataSource, _Corpus] = {}

    def load(self, settings: RunSettings) -> tuple[Trainable, str]:
        """Base model from disk, and the adapter of the run if there is one."""
        import torch

        if settings.training.threads:
            torch.set_num_threads(settings.training.threads)
        loaded = load_trainable(settings)
        self._tokenizer = loaded.tokenizer
        self._corpora.clear()
        model: Any = loaded.trainable.model
        model.to(_device(settings.training.device))
        if settings.training.gradient_checkpointing:
            model.gradient_checkpointing_enable()
            model.enable_input_require_grads()
        return loaded.trainable, loaded.base_digest

    def name(self, node_config: Mapping[str, object], settings: RunSettings) -> str:
        """The organisation's name."""
        return data_source(node_config, settings.data).name

    def train(self, trainable: Trainable, agreement: Agreement, info: RoundInfo) -> TrainResult:
        """``local-steps`` optimizer steps; in the compressor's own space if that is ``subspace``."""
        from distro_fed.data.batches import batch_at

        settings = info.settings.training
        corpus = self._corpus(info)
        examples = corpus.train
        seed = client_seed(info.settings.seed, info.name)
        pad_id = self._pad_id()

        def batch(number: int) -> dict[str, torch.Tensor]:
            return batch_at(examples, seed, number, settings.per_device_train_batch_size, pad_id=pad_id)

        if agreement.uplink.name != "subspace":
            trained = [parameter for parameter in trainable.parameters.values() if parameter.requires_grad]
            outcome = _steps(trainable, trained, batch, info, settings)
            return TrainResult(len(examples), outcome.loss, {"train-tokens": outcome.tokens}, corpus.columns)
        from distro_fed.clients.subspace_training import SubspaceTraining

        subspace = SubspaceTraining(trainable, agreement, agreement.key(info.round, info.version))
        with subspace.attached():
            outcome = _steps(trainable, subspace.parameters, batch, info, settings)
        metrics = {"train-tokens": outcome.tokens}
        return TrainResult(len(examples), outcome.loss, metrics, corpus.columns, subspace.coefficients())

    def evaluate(self, trainable: Trainable, info: RoundInfo) -> EvaluateResult | None:
        """Loss on the organisation's held-out text."""
        from distro_fed.evaluation.held_out import held_out_loss

        examples = self._corpus(info).test
        if not examples:
            return None
        measured = held_out_loss(
            trainable.model, examples, info.settings.training.per_device_train_batch_size, self._pad_id()
        )
        return EvaluateResult(measured.loss, measured.examples, measured.tokens)

    def _corpus(self, info: RoundInfo) -> _Corpus:
        source = data_source(info.node_config, info.settings.data)
        if source not in self._corpora:
            settings = info.settings.data
            train, columns = self._tokenized(source.train, "train", settings.max_train_examples, info)
            test = self._tokenized(source.test, "test", settings.max_test_examples, info)[0] if source.test else []
            self._corpora[source] = _Corpus(train, test, columns)
        return self._corpora[source]

    def _tokenized(self, source: str, split: str, limit: int, info: RoundInfo) -> tuple[list[Example], tuple[str, ...]]:
        from pathlib import Path

        from distro_fed.data.formats import FORMAT_COLUMNS, detect_format
        from distro_fed.data.load import load_examples
        from distro_fed.data.tokenize import tokenize_examples

        if self._tokenizer is None:
            raise ValueError("load() comes first")
        one_file = Path(source).expanduser().is_file()
        dataset = load_examples(
            source, split="train" if one_file else split, allow_download=info.settings.model.allow_download
        )
        if limit:
            dataset = dataset.select(range(min(limit, len(dataset))))
        tokenized = tokenize_examples(
            dataset, self._tokenizer, max_length=info.settings.data.max_length, source=f"{source} ({split})"
        )
        if tokenized.dropped or tokenized.truncated:
            log.warning(
                "%s: %d of %d examples are longer than max-length = %d; %d have nothing left to train on",
                source, tokenized.truncated, len(dataset), info.settings.data.max_length, tokenized.dropped,
            )  # fmt: skip
        return tokenized.examples, FORMAT_COLUMNS[detect_format(dataset.column_names, source)]

    def _pad_id(self) -> int:
        pad = getattr(self._tokenizer, "pad_token_id", None)
        return pad if isinstance(pad, int) else 0


def _steps(
    trainable: Trainable,
    parameters: list[torch.nn.Parameter],
    batch: object,
    info: RoundInfo,
    settings: TrainingSettings,
) -> LocalTraining:
    import torch

    from distro_fed.clients.train_locally import train_locally

    # dropout must not depend on what this process has done before
    with torch.random.fork_rng(devices=[parameters[0].device] if parameters[0].is_cuda else []):
        torch.manual_seed((client_seed(info.settings.seed, info.name) + info.round) % 2**63)
        return train_locally(
            trainable.model,
            parameters,
            batch,  # type: ignore[arg-type]
            first_step=(info.round - 1) * settings.local_steps,
            total_steps=info.rounds * settings.local_steps,
            settings=settings,
        )


def client_seed(seed: int, name: str) -> int:
    """Seed of an organisation's data order: of this run and this organisation, the same in every round."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _device(name: str) -> str:
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
