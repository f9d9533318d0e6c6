"""What baselines share that train by a loop of their own: the product's model, batches, rates and AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.product import run_config
from benchmarks.frontier.tasks import Task
from benchmarks.frontier.training_data import Batches, client_batches
from distro_fed.learning_rate import learning_rate_at
from distro_fed.model.configured import LoadedTrainable, load_trainable
from distro_fed.reporting.references import allreduce_bf16
from distro_fed.settings import RunSettings, TrainingSettings


@dataclass(frozen=True)
class Baseline:
    """A model to train, and the text of all clients.

    Attributes
    ----------
    loaded : LoadedTrainable
    clients : list of callable
        Batch by number of the step, for every client.
    training : TrainingSettings
    steps : int
    """

    task: Task
    loaded: LoadedTrainable
    clients: list[Batches]
    training: TrainingSettings
    steps: int

    @classmethod
    def open(cls, task: Task, configuration: Configuration) -> Baseline:
        """Load everything, and set the threads of this process."""
        settings = RunSettings.from_run_config(run_config(task, configuration))
        torch.set_num_threads(max(1, settings.training.threads))
        loaded = load_trainable(settings)
        clients = client_batches(task, configuration, settings, loaded.tokenizer)
        return cls(task, loaded, clients, settings.training, configuration.steps)

    @property
    def model(self) -> Any:
        """The model."""
        return self.loaded.trainable.model

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained."""
        return list(self.loaded.trainable.parameters.values())

    def adamw(self) -> torch.optim.AdamW:
        """AdamW as the product's clients have it; one for the whole run."""
        training = self.training
        betas = training.adam_beta1, training.adam_beta2
        return torch.optim.AdamW(self.parameters, lr=0.0, betas=betas, weight_decay=training.weight_decay, fused=True)

    def clip(self) -> None:
        """Clip the gradients as the product's clients do."""
        if self.training.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.training.max_grad_norm)

    def set_rate(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Learning rate of a step."""
        for group in optimizer.param_groups:
            group["lr"] = max(learning_rate_at(step, self.steps, self.training), 1e-12)

    def outcome(self, curve: list[float], sent: float | None = None, received: float | None = None) -> Outcome:
        """Measure the model; without bytes, those of a ring all-reduce of what is trained, in bfloat16."""
        if sent is None or received is None:
            trained = sum(parameter.numel() for parameter in self.parameters)
            traffic = allreduce_bf16(parameters=trained, clients=len(self.clients), rounds=self.steps, local_steps=1)
            sent, received = traffic.sent, traffic.received
        self.model.eval()
        losses = self.task.losses(self.model, self.loaded.tokenizer)
        return Outcome(losses, sent, received, self.loaded.parameters, self.steps, tuple(curve))
