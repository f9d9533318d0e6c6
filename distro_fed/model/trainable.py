"""The tensors a run changes, seen as one flat float32 vector."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distro_fed.errors import LayoutMismatch
from distro_fed.layout import Layout, TensorSpec, tensors_of

if TYPE_CHECKING:
    import torch
    from torch import nn


class Trainable:
    """An ordered map of trainable parameters and their :class:`~distro_fed.layout.Layout`.

    The order is that of the names, so it depends neither on the model's code nor on a library version.
    Flat vectors are one-dimensional, float32, ``layout.numel`` values long and may lie on any device;
    parameters keep their own dtype.

    Parameters
    ----------
    model : torch.nn.Module
        The model that holds the parameters; kept for the caller and for the kinds of its modules.
    parameters : mapping of str to torch.nn.Parameter
        Every parameter to exchange, once, under the name it has in updates.
    turns : sequence of sequence of str
        Names of the parameters that are trained on top of version 0, 1, ... of the replica, and again from the start;
        empty: all of them in every version.
    frozen_digest : str
        Identity of what is neither trained nor part of the base model, and which all members make by themselves.

    Raises
    ------
    LayoutMismatch
        If there is nothing to train, or a parameter is not float32, bfloat16 or float16.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        *,
        turns: Sequence[Sequence[str]] = (),
        frozen_digest: str = "",
    ) -> None:
        if not parameters:
            raise LayoutMismatch("the model has no trainable tensor: check the target modules of the adapter")
        self.model, self.frozen_digest = model, frozen_digest
        self.turns = tuple(tuple(turn) for turn in turns)
        self.parameters: dict[str, nn.Parameter] = {name: parameters[name] for name in sorted(parameters)}
        kinds = _kinds(model)
        self.layout = Layout(
            TensorSpec(
                name=name,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                kind=_kind(parameter, kinds),
            )
            for name, parameter in self.parameters.items()
        )

    def read(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy all values into one flat vector.

        Parameters
        ----------
        out : torch.Tensor, optional
            Flat float32 vector to fill; by default a new one on the device of the first parameter.

        Returns
        -------
        torch.Tensor
            ``out``.
        """
        out = self._flat(out)
        for place, parameter in self._slices():
            out[place].copy_(parameter.detach().reshape(-1))
        return out

    def write(self, flat: torch.Tensor) -> None:
        """Set all parameters from a flat float32 vector, rounding to each parameter's dtype.

        Raises
        ------
        LayoutMismatch
            If ``flat`` has another length, shape or dtype than the layout asks for.
        """
        self._check(flat)
        for place, parameter in self._slices():
            parameter.detach().copy_(flat[place].view(parameter.shape))

    def delta(self, start: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Parameters minus ``start`` as the model saw it: the pseudo-gradient.

        A bfloat16 model never held the float32 ``start`` but its rounding. Subtracting the rounding keeps
        the rounding error of the whole model out of an update that may be smaller than that error.

        Parameters
        ----------
        start : torch.Tensor
            Flat float32 vector that was given to :meth:`write` before training.
        out : torch.Tensor, optional
            Flat float32 vector to fill. It may be ``start`` itself.

        Returns
        -------
        torch.Tensor
            ``out``.
        """
        self._check(start)
        out = self._flat(out)
        for place, parameter in self._slices():
            seen = start[place].to(device=parameter.device, dtype=parameter.dtype).float()
            out[place].copy_(parameter.detach().reshape(-1).float() - seen)
        return out

    @contextmanager
    def only(self, names: Collection[str]) -> Iterator[None]:
        """While it is entered only the parameters of these names are trained, out of those that are trained at all."""
        frozen = [value for name, value in self.parameters.items() if name not in names and value.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)

    def digest(self) -> bytes:
        """16 bytes (BLAKE2b) over the layout and all values in their own dtype."""
        state = hashlib.blake2b(self.layout.digest, digest_size=16, person=b"df-values")
        for parameter in self.parameters.values():
            state.update(tensor_bytes(parameter))
        return state.digest()

    def _slices(self) -> Iterator[tuple[slice, nn.Parameter]]:
        for (_, place), parameter in zip(self.layout.slices(), self.parameters.values(), strict=True):
            yield place, parameter

    def _flat(self, out: torch.Tensor | None) -> torch.Tensor:
        import torch

        if out is None:
            device = next(iter(self.parameters.values())).device
            return torch.empty(self.layout.numel, dtype=torch.float32, device=device)
        self._check(out)
        return out

    def _check(self, flat: torch.Tensor) -> None:
        import torch

        if flat.dtype != torch.float32 or tuple(flat.shape) != (self.layout.numel,):
            raise LayoutMismatch(
                f"a flat vector of {self.layout.numel} float32 values is needed for {self.layout!r}, "
                f"got shape {tuple(flat.shape)} and dtype {flat.dtype}"
            )

    def __repr__(self) -> str:
        return f"Trainable({self.layout!r})"


def trainable_full(model: nn.Module, modules: str = "") -> Trainable:
    """Full fine-tuning: every parameter of ``model`` once, tied weights once, no buffers.

    Those that are trained get ``requires_grad = True``, and others False.

    Parameters
    ----------
    model : torch.nn.Module
    modules : str
        Train the parameters of these modules alone, as :func:`~distro_fed.layout.tensors_of` reads it; empty: all. Of
        tied weights only the first module has them.

    Raises
    ------
    SettingsError
        The model has no module of such a name with parameters of its own.
    """
    parameters = dict(model.named_parameters(remove_duplicate=True))
    chosen = set(tensors_of(list(parameters), modules))
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
    return Trainable(model, {name: parameters[name] for name in chosen})


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The raw values of a tensor of any dtype, row by row, without a copy where it is on the CPU."""
    import torch

    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _kinds(model: nn.Module) -> dict[int, str]:
    """Kind of each weight by the module that holds it; an embedding wins over a head tied to it."""
    from torch import nn

    kinds: dict[int, str] = {}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            kinds[id(module.weight)] = "embedding"
        elif isinstance(module, nn.Linear):
            kinds.setdefault(id(module.weight), "matrix")
    return kinds


def _kind(parameter: nn.Parameter, kinds: Mapping[int, str]) -> str:
    if parameter.ndim < 2:
        return "vector"
    return kinds.get(id(parameter), "other")
