"""R2: AdamW on the mean gradient of all clients in every step, as data-parallel training computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from benchmarks.frontier.baseline import Baseline
from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.outcome import Outcome
from benchmarks.frontier.tasks import Task


def run(task: Task, configuration: Configuration) -> Outcome:
    """One process computes the gradients of all clients together."""
    baseline = Baseline.open(task, configuration)
    optimizer = baseline.adamw()
    curve = []
    baseline.model.train()
    for step in range(baseline.steps):
        loss = mean_loss(baseline.model, [batch_at(step) for batch_at in baseline.clients])
        torch.autograd.backward(loss)
        baseline.clip()
        baseline.set_rate(optimizer, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        curve.append(float(loss.detach()))
    return baseline.outcome(curve)


def mean_loss(model: Any, batches: Sequence[Mapping[str, torch.Tensor]]) -> torch.Tensor:
    """Mean over the clients of their mean loss a token, in one pass over all their batches together."""
    length = max(batch["input_ids"].shape[1] for batch in batches)

    def together(name: str, padding: int) -> torch.Tensor:
        return torch.cat([functional.pad(b[name], (0, length - b[name].shape[1]), value=padding) for b in batches])

    labels = together("labels", -100)[:, 1:]
    output = model(
        input_ids=together("input_ids", 0), attention_mask=together("attention_mask", 0), use_cache=False
    )  # fmt: skip
    losses = functional.cross_entropy(output.logits[:, :-1].transpose(1, 2).float(), labels, reduction="none")
    sums = [part.sum() for part in losses.split([len(batch["labels"]) for batch in batches])]
    tokens = [int((batch["labels"][:, 1:] != -100).sum()) for batch in batches]
    return torch.stack([total / count for total, count in zip(sums, tokens, strict=True)]).mean()
