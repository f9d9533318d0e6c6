"""The local half of a step: gradient -> momentum buffer -> the votes of this peer.

The buffer is kept in the space of DCT coefficients. The DCT is linear and orthonormal, so this is the buffer of the
paper (Peng et al., arXiv 2411.19870, Algorithm 1) seen in another basis, and one transform a step is enough::

    paper      e <- beta e + eta g;   q = the largest of T e;   e <- e - T' q
    here       c <- beta c + eta T g; q = the largest of c;     c <- c - q, which sets them to zero
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from distro_fed.compression.dct import dct_
from distro_fed.errors import SettingsError, TrainingError
from distro_fed.optim.coefficient_order import CHUNK, CoefficientOrder
from distro_fed.optim.votes import Votes

#: what is added to the buffer: the gradient (DeMo), or the step that AdamW would take from it
LocalStep = Literal["gradient", "adamw"]
LOCAL_STEPS: tuple[LocalStep, ...] = ("gradient", "adamw")


@dataclass(frozen=True, slots=True)
class MomentumOptions:
    """How gradients enter the buffer.

    Attributes
    ----------
    momentum : float
        Decay ``beta`` of the buffer, at least 0 and below 1.
    local_step : str
        ``"gradient"`` or ``"adamw"``.
    betas : tuple of float
        Of the Adam moments with ``"adamw"``.
    eps : float
        Of the same.

    Raises
    ------
    SettingsError
        If one is out of range.
    """

    momentum: float = 0.999
    local_step: LocalStep = "gradient"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        for name, value in (("momentum", self.momentum), ("betas[0]", self.betas[0]), ("betas[1]", self.betas[1])):
            if not 0 <= value < 1:
                raise SettingsError(f"{name} = {value}; use at least 0 and less than 1")
        if not self.eps > 0:
            raise SettingsError(f"eps = {self.eps}; it must be above 0")
        if self.local_step not in LOCAL_STEPS:
            raise SettingsError(f"local_step = {self.local_step!r}; choose one of {', '.join(LOCAL_STEPS)}")


class LocalMomentum:
    """Everything that one peer keeps for itself between steps.

    Parameters
    ----------
    order : CoefficientOrder
    device : torch.device
        Where the buffer lies.
    options : MomentumOptions

    Attributes
    ----------
    coefficients : torch.Tensor
        The buffer, flat float32, ``(layout.numel,)``.
    moments : torch.Tensor or None
        Adam's first and second moment, float32, ``(2, layout.numel)``, with ``local_step="adamw"``.
    steps : int
        Gradients added so far.
    """

    def __init__(self, order: CoefficientOrder, device: torch.device, options: MomentumOptions) -> None:
        self._order, self._options = order, options
        size = order.layout.numel
        self.coefficients = torch.zeros(size, device=device)
        self.moments = torch.zeros(2, size, device=device) if options.local_step == "adamw" else None
        self.steps = 0
        self._taken: tuple[torch.Tensor, torch.Tensor] | None = None

    def add_gradients(self, parameters: Sequence[nn.Parameter], rates: Sequence[float]) -> None:
        """Decay the buffer and add the gradients of ``parameters``, each times its learning rate.

        A parameter without a gradient counts as one whose gradient is zero. What was taken out before and not
        delivered returns first.

        Raises
        ------
        TrainingError
            If a gradient is not finite. Nothing has been changed then.
        """
        device = self.coefficients.device
        _check_gradients(parameters, device)
        self.give_back()
        self.steps += 1
        scratch = torch.empty(max(spec.numel for spec in self._order.layout), device=device)
        tensors = zip(parameters, rates, self._order.single_layouts, self._order.layout.slices(), strict=True)
        for parameter, rate, layout, (_, where) in tensors:
            buffer = self.coefficients[where].mul_(self._options.momentum)
            if parameter.grad is None and self.moments is None:
                continue
            step = scratch[: buffer.numel()]
            if parameter.grad is None:
                step.zero_()
            else:
                step.copy_(parameter.grad.detach().reshape(-1))
            if self.moments is not None:
                self._normalise_(step, self.moments[:, where])
            buffer.add_(dct_(step, layout, CHUNK), alpha=rate)

    def take(self, k: int) -> Votes:
        """Take the largest coefficients out of the buffer; their signs are this peer's votes.

        Raises
        ------
        TrainingError
            If a coefficient is not finite or not below 2**64.
        """
        numbers, positions = self._order.select(self.coefficients, k)
        values = self.coefficients[positions]
        self.coefficients[positions] = 0.0
        self._taken = positions, values
        return Votes.of_one_peer(numbers.cpu().numpy(), (values > 0).cpu().numpy())

    def give_back(self) -> None:
        """Put back what :meth:`take` took last, because it was not delivered; without effect a second time."""
        if self._taken is not None:
            positions, values = self._taken
            self.coefficients[positions] = values
        self._taken = None

    def delivered(self) -> None:
        """Forget what :meth:`take` took last: it is part of a step now."""
        self._taken = None

    def clear(self) -> None:
        """Start again with an empty buffer, as a peer that joins does."""
        self.coefficients.zero_()
        if self.moments is not None:
            self.moments.zero_()
        self.steps = 0
        self._taken = None

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything, as if nothing was taken out."""
        coefficients = self.coefficients.clone()
        if self._taken is not None:
            positions, values = self._taken
            coefficients[positions] = values
        moments = None if self.moments is None else self.moments.clone()
        return {"steps": self.steps, "coefficients": coefficients, "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore.

        Raises
        ------
        SettingsError
            If it was saved with another ``local_step``.
        """
        if (state["moments"] is None) is not (self.moments is None):
            raise SettingsError("the state was saved with another local_step; build the optimizer as it was then")
        self.coefficients.copy_(state["coefficients"])
        if self.moments is not None:
            self.moments.copy_(state["moments"])
        self.steps = state["steps"]
        self._taken = None

    def _normalise_(self, gradient: torch.Tensor, moments: torch.Tensor) -> None:
        """Replace a gradient by the direction of AdamW (Loshchilov and Hutter, arXiv 1711.05101, Algorithm 2)."""
        first, second = moments
        beta1, beta2 = self._options.betas
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        torch.div(second, 1 - beta2**self.steps, out=gradient).sqrt_().add_(self._options.eps)
        torch.div(first, gradient, out=gradient).div_(1 - beta1**self.steps)


def _check_gradients(parameters: Sequence[nn.Parameter], device: torch.device) -> None:
    largest = {}
    for index, parameter in enumerate(parameters):
        if parameter.grad is None or parameter.numel() == 0:
            continue
        if parameter.grad.layout != torch.strided:
            raise SettingsError(
                f"parameter {index} has a gradient of layout {parameter.grad.layout}; use dense gradients "
                "(nn.Embedding with sparse=False)"
            )
        largest[index] = torch.linalg.vector_norm(parameter.grad.detach(), float("inf")).to(device, torch.float32)
    values = torch.stack(list(largest.values())).tolist() if largest else []
    for index, value in zip(largest, values, strict=True):
        if not value < float("inf"):  # a NaN compares false
            raise TrainingError(
                f"the gradient of parameter {index} holds {value}: training diverged or a loss overflowed; nothing was "
                "changed; lower the learning rate"
            )
