"""What a client does out of the box: fine-tune the run's base model on the organisation's text."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from distro_fed.agreement import Agreement
from distro_fed.clients.data_source import DataSource, data_source
from distro_fed.clients.node_overrides import examples_per_step, local_processes
from distro_fed.clients.task import EvaluateResult, RoundInfo, TrainResult
from distro_fed.model.configured import load_trainable
from distro_fed.presets import TRAINED_INSIDE
from distro_fed.settings import RunSettings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from distro_fed.clients.local_workers import LocalGroup
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
        device, quantization = _device(settings.training.device), settings.model.quantization
        loaded = load_trainable(settings, quantization=quantization, device=device)
        self._tokenizer = loaded.tokenizer
        self._corpora.clear()
        if quantization == "none":
            loaded.trainable.model.to(device)
        return loaded.trainable, loaded.base_digest

    def name(self, node_config: Mapping[str, object], settings: RunSettings) -> str:
        """The organisation's name."""
        return data_source(node_config, settings.data).name

    def train(self, trainable: Trainable, agreement: Agreement, info: RoundInfo) -> TrainResult:
        """``local-steps`` optimizer steps; in the compressor's own space if it is one of those in ``TRAINED_INSIDE``.

        With ``local-processes`` in the node config several processes of this machine share the work.
        """
        size = local_processes(info.node_config, info.settings)
        if size == 1:
            return self.train_in_group(trainable, agreement, info, None)
        from distro_fed.clients.local_workers import local_group

        trained = tuple(name for name, parameter in trainable.parameters.items() if parameter.requires_grad)
        job = _Share(self._corpus(info), trainable.read().cpu(), trained, agreement, info)
        cuda = next(iter(trainable.parameters.values())).is_cuda
        with local_group(size, job, "nccl" if cuda else "gloo") as group:
            return self.train_in_group(trainable, agreement, info, group)

    def train_in_group(
        self, trainable: Trainable, agreement: Agreement, info: RoundInfo, group: LocalGroup | None
    ) -> TrainResult:
        """What each of the processes does that train together; None: this one alone."""
        from distro_fed.data.batches import batch_at

        settings = info.settings.training
        corpus = self._corpus(info)
        examples, more = corpus.train, _own_step_size(info)
        seed = client_seed(info.settings.seed, info.name)
        pad_id = self._pad_id()

        def batch(number: int) -> dict[str, torch.Tensor]:
            return batch_at(examples, seed, number, settings.per_device_train_batch_size, pad_id=pad_id)

        if agreement.uplink.name not in TRAINED_INSIDE:
            trained = {name: one for name, one in trainable.parameters.items() if one.requires_grad}
            outcome = _steps(trainable, trained, batch, info, group)
            return TrainResult(len(examples), outcome.loss, {"train-tokens": outcome.tokens, **more}, corpus.columns)
        from distro_fed.clients.subspace_training import SubspaceTraining

        subspace = SubspaceTraining(trainable, agreement, agreement.key(info.round, info.version, info.memory))
        with subspace.attached():
            outcome = _steps(trainable, subspace.parameters, batch, info, group)
        metrics = {"train-tokens": outcome.tokens, **more}
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

    def use_corpus(self, info: RoundInfo, corpus: _Corpus) -> None:
        """Take text that another process has tokenised."""
        self._corpora[data_source(info.node_config, info.settings.data)] = corpus

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


@dataclass(frozen=True, slots=True)
class _Share:
    """Training of one round in another process of this machine; a :data:`~distro_fed.clients.local_workers.Job`.

    Attributes
    ----------
    corpus : _Corpus
    values : torch.Tensor
        The replica that training starts from, flat float32 on the CPU.
    trained : tuple of str
        Parameters that this round trains.
    agreement : Agreement
    info : RoundInfo
    """

    corpus: _Corpus
    values: torch.Tensor
    trained: tuple[str, ...]
    agreement: Agreement
    info: RoundInfo

    def __call__(self, rank: int) -> Callable[[LocalGroup], object]:
        training = self.info.settings.training
        own = replace(training, device=_next_device(training.device, rank))
        info = replace(self.info, settings=replace(self.info.settings, training=own))
        task = FineTuning()
        trainable, _ = task.load(info.settings)
        trainable.write(self.values)
        for name, parameter in trainable.parameters.items():
            parameter.requires_grad_(name in self.trained)
        task.use_corpus(info, self.corpus)
        return partial(task.train_in_group, trainable, self.agreement, info)


def _next_device(name: str, rank: int) -> str:
    """Device of process ``rank`` where process 0 has the named one: the next GPU."""
    own = _device(name)
    kind, _, first = own.partition(":")
    return f"cuda:{int(first or 0) + rank}" if kind == "cuda" else own


def _steps(
    trainable: Trainable,
    parameters: Mapping[str, torch.nn.Parameter],
    batch: object,
    info: RoundInfo,
    group: LocalGroup | None,
) -> LocalTraining:
    import torch

    from distro_fed.clients.optimizer_store import OptimizerStore
    from distro_fed.clients.train_locally import train_locally

    settings, store = info.settings.training, None
    if settings.optimizer_state == "kept" and info.state_folder is not None:
        store = OptimizerStore(info.state_folder / "optimizer", info.round)

    if settings.threads:
        torch.set_num_threads(settings.threads)
    # dropout must not depend on what this process has done before
    devices = [one.device for one in parameters.values() if one.is_cuda][:1]
    with torch.random.fork_rng(devices=devices), _checkpointed(trainable.model, settings.gradient_checkpointing):
        own = info.round + (0 if group is None else group.rank * info.rounds)
        torch.manual_seed((client_seed(info.settings.seed, info.name) + own) % 2**63)
        return train_locally(
            trainable.model,
            parameters,
            batch,  # type: ignore[arg-type]
            first_step=(info.round - 1) * settings.local_steps,
            total_steps=info.rounds * settings.local_steps,
            settings=settings,
            group=group,
            store=store,
        )


@contextmanager
def _checkpointed(model: Any, wanted: bool) -> Iterator[None]:
    """While it is entered activations are computed twice instead of kept, if that is wanted."""
    if not wanted:
        yield
        return
    model.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()


def _own_step_size(info: RoundInfo) -> dict[str, float]:
    """Examples of an optimizer step, told to the server if this node's config decides about them."""
    own = any(key in info.node_config for key in ("per-device-train-batch-size", "gradient-accumulation-steps"))
    return {"examples-per-step": examples_per_step(info.settings)} if own else {}


def client_seed(seed: int, name: str) -> int:
    """Seed of an organisation's data order: of this run and this organisation, the same in every round."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _device(name: str) -> str:
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
