"""Full fine-tuning at the cost of an adapter: train a factor of every matrix, in a subspace where it may change.

The compressors ``subspace`` and ``tracking`` give every matrix a public basis for this round. Instead of training all
weights and projecting the change, the coefficients in that basis are trained directly: no gradient and no optimizer
state for the weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distro_fed.agreement import Agreement
from distro_fed.compression.base import Compressor, RoundKey
from distro_fed.errors import LayoutMismatch

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distro_fed.layout import Layout
    from distro_fed.model.trainable import Trainable


class SubspaceTraining:
    """Coefficients of one round, hooked into the forward pass of a model.

    Parameters
    ----------
    trainable : Trainable
        All weights of the model; they stay as they are.
    agreement : Agreement
        Its uplink compressor is a :class:`~distro_fed.compression.subspace.Subspace` or a
        :class:`~distro_fed.compression.tracking.Tracking`.
    key : RoundKey
        Chooses the basis.
    """

    def __init__(self, trainable: Trainable, agreement: Agreement, key: RoundKey) -> None:
        self._trainable = trainable
        self._modules = _modules_by_parameter(trainable)
        self._changes = dict(_changes(trainable, agreement.uplink, agreement.layout, key))

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The float32 coefficients of every matrix of the space, by its name: (out, rank); ``tracking`` its factor."""
        return {name: change.coefficients for name, change in self._changes.items()}

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

        return torch.cat([change.coefficients.detach().reshape(-1) for change in self._changes.values()]).float()


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """What is added to one matrix: ``left @ right``, of which one is trained and the other the basis.

    Attributes
    ----------
    coefficients : torch.nn.Parameter
    basis : torch.Tensor
        Rows, (rank, in), or with ``on_columns`` (rank, out).
    transposed : bool
        The coefficients are (rank, side) and not (side, rank).
    on_columns : bool
        The basis is on the side of the outputs.
    """

    coefficients: nn.Parameter
    basis: torch.Tensor
    transposed: bool = False
    on_columns: bool = False

    def hook(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """For ``register_forward_hook`` of a linear module."""
        import torch

        del module
        trained = self.coefficients.to(self.basis.dtype)
        if self.on_columns:
            return output + torch.nn.functional.linear(inputs[0], trained) @ self.basis
        inside = torch.nn.functional.linear(inputs[0], self.basis)
        return output + (inside @ trained if self.transposed else torch.nn.functional.linear(inside, trained))


def _changes(
    trainable: Trainable, compressor: Compressor, layout: Layout, key: RoundKey
) -> Iterator[tuple[str, _Change]]:
    """One for every matrix that is exchanged, in the order of the layout."""
    import torch

    from distro_fed.compression.subspace import Subspace
    from distro_fed.compression.tracking import Tracking

    # float32 whatever the weights are: the coefficients are what is sent
    def zeros(weight: torch.Tensor, *shape: int) -> nn.Parameter:
        return torch.nn.Parameter(torch.zeros(shape, device=weight.device))

    if isinstance(compressor, Subspace):
        for spec in filter(compressor.exchanges, layout):
            weight = trainable.parameters[spec.name]
            basis = compressor.basis(spec, key).to(weight)
            yield spec.name, _Change(zeros(weight, spec.shape[0], basis.shape[0]), basis)
    elif isinstance(compressor, Tracking):
        for spec, rows in compressor.bases(layout, key):
            weight = trainable.parameters[spec.name]
            shape = compressor.factor_shape(spec, key.version)
            yield spec.name, _Change(zeros(weight, *shape), rows.to(weight), True, key.version % 2 == 1)
    else:
        raise LayoutMismatch(
            f"training in a subspace needs the compressor 'subspace' or 'tracking', not {compressor.describe()!r}"
        )


def _modules_by_parameter(trainable: Trainable) -> dict[str, list[nn.Module]]:
    """Linear modules by the name of their weight; several may share one."""
    from torch import nn

    linears = [module for module in trainable.model.modules() if isinstance(module, nn.Linear)]
    return {
        name: [module for module in linears if module.weight is weight] for name, weight in trainable.parameters.items()
    }
