"""A transformers ``Trainer`` as training function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distro_fed.clients.task import EvaluateResult, RoundInfo, TrainResult
from distro_fed.errors import SettingsError

if TYPE_CHECKING:
    from torch import nn
    from transformers import Trainer

log = logging.getLogger("distro_fed")


class TrainerTask:
    """Load, train and evaluate functions around one Trainer, built when it is first needed."""

    def __init__(self, make_trainer: Callable[[], Trainer]) -> None:
        self._make = make_trainer
        self._trainer: Any = None

    def load(self) -> nn.Module:
        """The Trainer's model."""
        model: nn.Module = self._built().model
        return model

    def train(self, model: nn.Module, info: RoundInfo) -> TrainResult:
        """``local-steps`` optimizer steps with a fresh optimizer and schedule."""
        del model
        if info.settings.training.optimizer_state == "kept":
            log.warning("optimizer-state = 'kept' has no effect on a Trainer: each round begins with a fresh optimizer")
        trainer = self._built()
        trainer.args.max_steps = info.settings.training.local_steps
        trainer.args.seed = trainer.args.data_seed = info.settings.seed + info.round
        trainer.optimizer = trainer.lr_scheduler = None
        loss = float(trainer.train().training_loss)
        return TrainResult(num_examples=_length(trainer.train_dataset), loss=loss)

    def evaluate(self, model: nn.Module, info: RoundInfo) -> EvaluateResult | None:
        """Loss on the Trainer's evaluation data; None without any."""
        del model, info
        trainer = self._built()
        if trainer.eval_dataset is None:
            return None
        count = _length(trainer.eval_dataset)
        return EvaluateResult(loss=float(trainer.evaluate()["eval_loss"]), num_examples=count, tokens=count)

    def _built(self) -> Any:
        if self._trainer is None:
            self._trainer = self._make()
        return self._trainer


def _length(dataset: Any) -> int:
    if not hasattr(dataset, "__len__"):
        raise SettingsError("the Trainer's data set has no length; use a map-style data set, its length weighs updates")
    return len(dataset)
