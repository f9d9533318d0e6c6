"""The model a run starts from, in the forms a caller may have it."""

from __future__ import annotations

from collections.abc import Sequence
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
        There is no array, one has a dtype that is not trained, or values that are not finite.
    """
    import torch

    if not isinstance(initial, ArrayRecord):
        return initial.layout, initial.read().cpu()
    arrays = {name: initial[name] for name in sorted(initial)}
    for name, array in arrays.items():
        if array.dtype not in DTYPES:
            raise LayoutMismatch(f"array {name!r} has dtype {array.dtype}; trained are {', '.join(DTYPES)}")
    if not arrays:
        raise LayoutMismatch("the ArrayRecord is empty: give the model's parameters")
    layout = Layout(
        TensorSpec(name, tuple(array.shape), array.dtype, "vector" if len(array.shape) < 2 else "other")
        for name, array in arrays.items()
    )
    values = torch.empty(layout.numel)
    for (spec, place), array in zip(layout.slices(), arrays.values(), strict=True):
        values[place] = torch.from_numpy(array.numpy().reshape(spec.numel)).float()
    if not bool(values.isfinite().all()):
        raise LayoutMismatch("the initial model holds values that are not finite")
    return layout, values


def turns_of(initial: ArrayRecord | InitialModel) -> tuple[tuple[str, ...], ...]:
    """Names of the tensors that are trained in turn, if the model says so (``Trainable.turns``)."""
    return getattr(initial, "turns", ())


def replica_arrays(replica: Replica, names: Sequence[str]) -> ArrayRecord:
    """The replica as Flower's own record, for code that expects it: arrays in the order of ``names``.

    float16 comes back as float16; bfloat16, which numpy does not have, as float32.
    """
    arrays: dict[str, Array] = {}
    for spec, place in replica.agreement.layout.slices():
        values = replica.values[place].view(spec.shape).numpy()
        arrays[spec.name] = Array(values.astype("float16") if spec.dtype == "float16" else values)
    return ArrayRecord({name: arrays[name] for name in names})
