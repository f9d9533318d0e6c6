"""Local optimizers by the name of the setting ``optim``."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from distro_fed.settings import TrainingSettings

#: coefficients of the quintic Newton-Schulz iteration and number of its steps, as published by Jordan et al.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5


def make_optimizers(
    model: nn.Module, trained: Sequence[nn.Parameter], settings: TrainingSettings
) -> list[torch.optim.Optimizer]:
    """Optimizers that together update every trained parameter once, without any state yet.

    ``adamw`` is Loshchilov and Hutter's (arXiv 1711.05101); ``sgd`` adds ``momentum`` without dampening, and
    ``weight_decay`` to the gradient; ``muon`` takes :class:`Muon` for hidden matrices, and AdamW at the same learning
    rate for the rest.

    Parameters
    ----------
    model : torch.nn.Module
        Tells embeddings and output head from hidden matrices.
    trained : sequence of torch.nn.Parameter
        Those that are no part of the model, such as coefficients of a subspace, are told apart by their axes alone.
    settings : TrainingSettings
        ``optim``, ``momentum``, ``adam_beta1``, ``adam_beta2`` and ``weight_decay``. The learning rate is set before
        every step.
    """
    if settings.optim == "sgd":
        return [torch.optim.SGD(trained, lr=0.0, momentum=settings.momentum, weight_decay=settings.weight_decay)]
    if settings.optim == "adamw":
        return [_adamw(trained, settings)]
    hidden, rest = _hidden_matrices(model, trained)
    optimizers: list[torch.optim.Optimizer] = []
    if hidden:
        optimizers.append(Muon(hidden, momentum=settings.momentum, weight_decay=settings.weight_decay))
    if rest:
        optimizers.append(_adamw(rest, settings))
    return optimizers


class Muon(torch.optim.Optimizer):
    """Momentum whose every update of a matrix is replaced by the nearest semi-orthogonal one, nearly.

    K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024: Nesterov momentum, five steps
    of a quintic Newton-Schulz iteration, decoupled weight decay. An update of an (out, in) matrix is multiplied by
    ``0.2 sqrt(max(out, in))``: then the root mean square of its values is 0.2, as AdamW's is in long training, and one
    learning rate can serve both (Liu et al., "Muon is Scalable for LLM Training", arXiv 2502.16982, section 2.2). The
    first steps of a fresh AdamW are larger, up to 1, so that short rounds may want a larger rate with Muon.

    ``torch.optim.Muon`` computes the same, but exists from torch 2.9 on only, and always iterates in bfloat16, which a
    CPU without instructions for it multiplies many times slower than float32.

    Parameters
    ----------
    parameters : sequence of torch.nn.Parameter
        Two axes each.
    lr : float
    momentum : float
        0: the gradient alone, and no state. Jordan et al. take 0.95.
    weight_decay : float
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float = 0.0, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; ``closure`` is not used."""
        del closure
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update = parameter.grad
                if momentum:
                    state = self.state[parameter]
                    if not state:
                        state["momentum_buffer"] = torch.zeros_like(update)
                    average = state["momentum_buffer"].lerp_(update, 1 - momentum)
                    update = update.lerp(average, momentum)
                parameter.mul_(1 - lr * group["weight_decay"])
                scale = 0.2 * math.sqrt(max(parameter.shape))
                parameter.add_(semi_orthogonal(update).to(parameter.dtype), alpha=-lr * scale)


def semi_orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Move all singular values of a matrix near 1, by the Newton-Schulz iteration of Jordan et al.

    Parameters
    ----------
    matrix : torch.Tensor
        Two axes.

    Returns
    -------
    torch.Tensor
        The same shape, bfloat16 on a GPU and float32 elsewhere. Singular values above 0.002 of the matrix' Frobenius
        norm end between 0.68 and 1.21; smaller ones stay smaller, and 0 stays 0.
    """
    a, b, c = _NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def _hidden_matrices(
    model: nn.Module, trained: Sequence[nn.Parameter]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices that are neither an embedding nor the output head, and everything else."""
    ends = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    output_embeddings = getattr(model, "get_output_embeddings", None)  # transformers' name for the head
    if callable(output_embeddings):
        ends.add(id(getattr(output_embeddings(), "weight", None)))
    hidden = [parameter for parameter in trained if parameter.ndim == 2 and id(parameter) not in ends]
    taken = {id(parameter) for parameter in hidden}
    return hidden, [parameter for parameter in trained if id(parameter) not in taken]


def _adamw(trained: Sequence[nn.Parameter], settings: TrainingSettings) -> torch.optim.AdamW:
    # fused: one pass over the weights where the default makes ten
    fused = all(_fused_adamw_runs(*kind) for kind in {(parameter.device, parameter.dtype) for parameter in trained})
    return torch.optim.AdamW(
        trained,
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        weight_decay=settings.weight_decay,
        fused=True if fused else None,
    )


@functools.cache
def _fused_adamw_runs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the fused AdamW takes such parameters; some devices say so only when a step is made."""
    probe = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
    probe.grad = torch.zeros_like(probe)
    try:
        torch.optim.AdamW([probe], fused=True).step()
    except RuntimeError:
        return False
    return True
