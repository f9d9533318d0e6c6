"""What an organisation does with its data, as the rest of the client sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from distro_fed.agreement import Agreement
from distro_fed.settings import RunSettings

if TYPE_CHECKING:
    import torch

    from distro_fed.model.trainable import Trainable


@dataclass(frozen=True, slots=True)
class RoundInfo:
    """What a training or evaluation function is told.

    Attributes
    ----------
    round, rounds : int
        This round, from 1, and the number of rounds of the run.
    name : str
        The organisation's name.
    settings : RunSettings
        Settings of the run; ``settings.training.local_steps`` is the number of steps asked for.
    node_config : mapping
        Flower's configuration of this node.
    extra : mapping
        The server's ``train_config``.
    version : int
        Version of the replica that is trained: aggregated updates so far.
    state_folder : Path or None
        Folder of this organisation's own in this run, for what training keeps from one round to the next; it need not
        exist yet. None: nothing is kept.
    memory : torch.Tensor or None
        What the compressor keeps of the last aggregated update: :attr:`~distro_fed.replica.Replica.memory`.
    """

    round: int
    rounds: int
    name: str
    settings: RunSettings
    node_config: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    version: int = 0
    state_folder: Path | None = None
    memory: torch.Tensor | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training function returns.

    Attributes
    ----------
    num_examples : int
        Weighs the update; at least 1.
    loss : float
        Mean training loss, nats per token.
    metrics : mapping of str to float
        More numbers to report. They leave the organisation.
    columns : tuple of str
        Columns of the data that were trained on, for the model card: names, never content.
    coefficients : torch.Tensor, optional
        The update in the round's own coefficient space, flat float32, if training happened there. By default it is
        taken from the change of the model's parameters.
    """

    num_examples: int
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    coefficients: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """Held-out loss in nats per token, and how much it was measured on."""

    loss: float
    num_examples: int
    tokens: int = 0


class LocalTask(Protocol):
    """What an organisation does with its data; see :class:`~distro_fed.clients.fine_tuning.FineTuning`."""

    def load(self, settings: RunSettings) -> tuple[Trainable, str]:
        """The model's trainable tensors at their initial values, and the digest of its frozen part."""
        ...

    def name(self, node_config: Mapping[str, object], settings: RunSettings) -> str:
        """The organisation's name for itself, unique in the federation; empty: Flower's node id."""
        ...

    def train(self, trainable: Trainable, agreement: Agreement, info: RoundInfo) -> TrainResult:
        """Train the model in place."""
        ...

    def evaluate(self, trainable: Trainable, info: RoundInfo) -> EvaluateResult | None:
        """Measure the model on held-out data; None if there is none."""
        ...
