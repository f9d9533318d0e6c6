"""Full fine-tuning at the cost of an adapter: train B where the weights may change by B A only.

The compressor ``subspace`` gives every matrix a public basis A for this round. Instead of training all weights
and projecting the change, the coefficients B are trained directly: no gradient and no optimizer state for
the weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distro_fed.agreement import Agreement
from distro_fed.compression.base import RoundKey
from distro_fed.compression.subspace import Subspace
from distro_fed.errors import LayoutMismatch

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distro_fed.model.trainable import Trainable


class SubspaceTraining:
    """Coefficients B of one round, hooked into the forward pass of a model.

    Parameters
    ----------
    trainable : Trainable
        All weights of the model; they stay as they are.
    agreement : Agreement
        Its uplink compressor is a :class:`~distro_fed.compression.subspace.Subspace`.
    key : RoundKey
        Chooses the basis.
    """

    def __init__(self, trainable: Trainable, agreement: Agreement, key: RoundKey) -> None:
        import torch

        compressor = agreement.uplink
        if not isinstance(compressor, Subspace):
            raise LayoutMismatch(f"subspace training needs the compressor 'subspace', not {compressor.describe()!r}")
        self._trainable, self._space = trainable, agreement.space(key)
        self._modules = _modules_by_parameter(trainable)
        specs = {spec.name: spec for spec in agreement.layout}
        self._bases: dict[str, torch.Tensor] = {}
        self._coefficients: dict[str, nn.Parameter] = {}
        for small in self._space:
            weight = trainable.parameters[small.name]
            self._bases[small.name] = compressor.basis(specs[small.name], key).to(weight)
            # float32 whatever the weights are: B is what is sent
            self._coefficients[small.name] = torch.nn.Parameter(torch.zeros(small.shape, device=weight.device))

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """One (out, rank) float32 parameter for every matrix of the space, by its name."""
        return dict(self._coefficients)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While it is entered the model computes with ``W + B A`` and its own weights are frozen."""
        frozen = [(parameter, parameter.requires_grad) for parameter in self._trainable.parameters.values()]
        handles = [
            module.register_forward_hook(self._hook(name))
            for name in self._coefficients
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
        """All B as one flat float32 vector, ``(space.numel,)``."""
        import torch

        return torch.cat([self._coefficients[spec.name].detach().reshape(-1) for spec in self._space]).float()

    def _hook(self, name: str):  # type: ignore[no-untyped-def]
        import torch

        rows, columns = self._bases[name], self._coefficients[name]

        def add(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            del module
            inside = torch.nn.functional.linear(inputs[0], rows)
            return output + torch.nn.functional.linear(inside, columns.to(inside.dtype))

        return add


def _modules_by_parameter(trainable: Trainable) -> dict[str, list[nn.Module]]:
    """Linear modules by the name of their weight; several may share one."""
    from torch import nn

    linears = [module for module in trainable.model.modules() if isinstance(module, nn.Linear)]
    return {
        name: [module for module in linears if module.weight is weight] for name, weight in trainable.parameters.items()
    }
