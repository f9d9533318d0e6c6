"""The model a run starts from, in the forms a caller may have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from flwr.app import Array, ArrayRecord

from distro_fed.errors import LayoutMismatch
from distro_fed.layout import DTYPES, Layout, TensorSpec
from distro_fed.replica import Replica

if TYPE_CHECKING:
    import torch


class InitialModel(Protocol):
    """Anything with a layout whose values can be read: :class:`~distro_fed.model.trainable.Trainable`."""

    layout: Layout

    def read(self) -> torch.Tensor:
        """All values as one flat float32 vector."""
        ...


def initial_values(initial: ArrayRecord | InitialModel) -> tuple[Layout, torch.Tensor]:
    """Layout and flat float32 values, in the order of the names.

    Raises
    ------
    LayoutMismatch
        An array has a dtype that is not trained.
    """
    import torch

    if not isinstance(initial, ArrayRecord):
        return initial.layout, initial.read().cpu()
    arrays = {name: initial[name] for name in sorted(initial)}
    for name, array in arrays.items():
        if array.dtype not in DTYPES:
            raise LayoutMismatch(f"array {name!r} has dtype {array.dtype}; trained are {', '.join(DTYPES)}")
    layout = Layout(
        TensorSpec(name, tuple(array.shape), array.dtype, "vector" if len(array.shape) < 2 else "other")
        for name, array in arrays.items()
    )
    values = torch.empty(layout.numel)
    for (spec, place), array in zip(layout.slices(), arrays.values(), strict=True):
        values[place] = torch.from_numpy(array.numpy().reshape(spec.numel)).float()
    return layout, values


def replica_arrays(replica: Replica) -> ArrayRecord:
    """The replica as Flower's own record, float32, for code that expects it."""
    arrays: dict[str, Array] = {}
    for spec, place in replica.agreement.layout.slices():
        arrays[spec.name] = Array(replica.values[place].view(spec.shape).numpy())
    return ArrayRecord(arrays)
