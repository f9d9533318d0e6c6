"""Full fine-tuning at the cost of an adapter: train factors of every matrix, in a subspace where it may change.

The compressors ``subspace``, ``tracking`` and ``tracking-topk`` give every matrix public bases for this round. Instead
of training the weights and projecting the change, the coefficients on those bases are trained directly: no gradient and
no optimizer state for the weights themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distro_fed.agreement import Agreement
from distro_fed.compression.base import Compressor, RoundKey
from distro_fed.errors import LayoutMismatch
from distro_fed.presets import TRAINED_INSIDE

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distro_fed.layout import Layout, TensorSpec
    from distro_fed.model.trainable import Trainable


class SubspaceTraining:
    """Coefficients of one round, hooked into the forward pass of a model.

    Parameters
    ----------
    trainable : Trainable
        Weights of the model; they stay as they are.
    agreement : Agreement
        Its uplink compressor is a :class:`~distro_fed.compression.subspace.Subspace` or made of
        :class:`~distro_fed.compression.tracking_bases.TrackedFactors`.
    key : RoundKey
        Chooses the bases.
    """

    def __init__(self, trainable: Trainable, agreement: Agreement, key: RoundKey) -> None:
        self._trainable = trainable
        self._modules = _modules_by_parameter(trainable)
        self._changes = dict(_changes(trainable, agreement.uplink, agreement.layout, key))

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The float32 coefficients: one tensor for every matrix of the space, with tracked factors two."""
        return {name: one for change in self._changes.values() for name, one in change.trained.items()}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While it is entered the model computes with the changed weights and its own are frozen."""
        frozen = [(parameter, parameter.requires_grad) for parameter in self._trainable.parameters.values()]
        handles = [
            module.register_forward_hook(change.hook)
            for name, change in self._changes.items()
            for module in self._modules[name]
        ]
        for parameter, _ in frozen:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for parameter, required in frozen:
                parameter.requires_grad_(required)

    def coefficients(self) -> torch.Tensor:
        """All coefficients as one flat float32 vector, ``(space.numel,)``."""
        import torch

        return torch.cat([one.detach().reshape(-1) for one in self.parameters.values()]).float()


class _Change(ABC):
    """What is added to one matrix.

    Attributes
    ----------
    trained : dict of str to torch.nn.Parameter
        Coefficients, in the order of the space.
    """

    trained: dict[str, nn.Parameter]

    @abstractmethod
    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``A``, (k, in), and ``B``, (out, k): what is added is ``B A``."""

    def hook(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """For ``register_forward_hook`` of a linear module."""
        from torch.nn.functional import linear

        del module
        rows, columns = self.factors()
        return output + linear(linear(inputs[0], rows), columns)


class _OneFactor(_Change):
    """Of ``subspace``: B alone is trained, (out, rank)."""

    def __init__(self, spec: TensorSpec, rows: torch.Tensor) -> None:
        self._rows = rows
        self.trained = {spec.name: _zeros(rows, spec.shape[0], len(rows))}

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        (columns,) = self.trained.values()
        return self._rows, columns.to(self._rows.dtype)


class _BothFactors(_Change):
    """Tracked factors: ``F^T Q + P^T G``, with F, (rank, out), and G, (rank, in), trained."""

    def __init__(self, spec: TensorSpec, left: torch.Tensor, right: torch.Tensor) -> None:
        self._left, self._right = left, right
        self.trained = {f"{spec.name}[out]": _zeros(left, *left.shape), f"{spec.name}[in]": _zeros(right, *right.shape)}

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        outer, inner = (one.to(self._left.dtype) for one in self.trained.values())
        return torch.cat([self._right, inner]), torch.cat([outer, self._left]).T


def _zeros(like: torch.Tensor, *shape: int) -> nn.Parameter:
    """Float32 whatever the weights are: the coefficients are what is sent."""
    import torch

    return torch.nn.Parameter(torch.zeros(shape, device=like.device))


def _changes(
    trainable: Trainable, compressor: Compressor, layout: Layout, key: RoundKey
) -> Iterator[tuple[str, _Change]]:
    """One for every matrix that is exchanged, in the order of the layout."""
    from distro_fed.compression.subspace import Subspace
    from distro_fed.compression.tracking_bases import TrackedFactors

    if isinstance(compressor, Subspace):
        for spec in filter(compressor.exchanges, layout):
            weight = trainable.parameters[spec.name]
            yield spec.name, _OneFactor(spec, compressor.basis(spec, key).to(weight))
    elif isinstance(compressor, TrackedFactors):
        for spec, left, right in compressor.bases(layout, key):
            weight = trainable.parameters[spec.name]
            yield spec.name, _BothFactors(spec, left.to(weight), right.to(weight))
    else:
        raise LayoutMismatch(
            f"training in a subspace needs the compressor {' or '.join(TRAINED_INSIDE)}, not {compressor.describe()!r}"
        )


def _modules_by_parameter(trainable: Trainable) -> dict[str, list[nn.Module]]:
    """Linear modules by the name of their weight; several may share one."""
    from torch import nn

    linears = [module for module in trainable.model.modules() if isinstance(module, nn.Linear)]
    return {
        name: [module for module in linears if module.weight is weight] for name, weight in trainable.parameters.items()
    }
