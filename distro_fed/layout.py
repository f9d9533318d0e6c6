"""The ordered map of trainable tensors that all members of a run agree on.

A :class:`Layout` says which tensors a run exchanges and where each lies in one flat vector. It holds
no values, needs no torch, and is identified by a digest that travels in every update.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from distro_fed.errors import LayoutMismatch, SettingsError

DTYPES = ("float32", "bfloat16", "float16")
KINDS = ("matrix", "embedding", "vector", "other")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of one trainable tensor.

    Attributes
    ----------
    name : str
        Dotted parameter name, unique in its layout.
    shape : tuple of int
        Any rank; ``()`` for a scalar. A dimension may be 0.
    dtype : str
        ``"float32"``, ``"bfloat16"`` or ``"float16"``: the dtype in the model. The flat vector that
        compressors see is always float32.
    kind : str
        ``"matrix"`` (weight of a linear map, out x in), ``"embedding"`` (also a tied output head),
        ``"vector"`` (fewer than two dimensions) or ``"other"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "other"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise LayoutMismatch(
                f"tensor {self.name!r} has dtype {self.dtype!r}; trainable tensors are one of "
                f"{', '.join(DTYPES)}: load the base model in one of these"
            )
        if self.kind not in KINDS:
            raise LayoutMismatch(f"tensor {self.name!r} has kind {self.kind!r}, not one of {', '.join(KINDS)}")
        if any(size < 0 for size in self.shape):
            raise LayoutMismatch(f"tensor {self.name!r} has a negative size in shape {self.shape}")

    @property
    def numel(self) -> int:
        """Number of values; 1 for a scalar."""
        return math.prod(self.shape)


class Layout:
    """An ordered, immutable list of :class:`TensorSpec` and the place of each in one flat vector."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self.specs: tuple[TensorSpec, ...] = tuple(specs)
        names = [spec.name for spec in self.specs]
        if len(set(names)) != len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise LayoutMismatch(f"tensor name {double!r} appears twice; names must be unique")
        ends = [0]
        for spec in self.specs:
            ends.append(ends[-1] + spec.numel)
        self.offsets: tuple[int, ...] = tuple(ends)

    @property
    def numel(self) -> int:
        """Number of values of all tensors together."""
        return self.offsets[-1]

    @cached_property
    def digest(self) -> bytes:
        """16 bytes (BLAKE2b) over names, shapes and dtypes, in order.

        Kinds are left out: they are advice for compressors, which a member that knows its tensors only
        by name cannot give.
        """
        state = hashlib.blake2b(digest_size=16, person=b"df-layout")
        for spec in self.specs:
            line = f"{spec.name}\0{','.join(map(str, spec.shape))}\0{spec.dtype}\n"
            state.update(line.encode())
        return state.digest()

    def slices(self) -> Iterator[tuple[TensorSpec, slice]]:
        """Each spec with its slice of the flat vector."""
        for spec, start, end in zip(self.specs, self.offsets, self.offsets[1:], strict=False):
            yield spec, slice(start, end)

    def explain_difference(self, other: Layout) -> str:
        """First difference to ``other``, in words; empty when both are equal."""
        for mine, theirs in zip(self.specs, other.specs, strict=False):
            if mine != theirs:
                return f"{mine.name} {mine.shape} {mine.dtype} against {theirs.name} {theirs.shape} {theirs.dtype}"
        if len(self.specs) != len(other.specs):
            return f"{len(self.specs)} tensors against {len(other.specs)}"
        return ""

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.specs == other.specs

    def __hash__(self) -> int:
        return hash(self.specs)

    def __repr__(self) -> str:
        return f"Layout({len(self)} tensors, {self.numel:,} values, {self.digest.hex()[:8]})"


def tensors_of(names: Sequence[str], modules: str) -> list[str]:
    """Names of tensors that belong to some modules.

    Parameters
    ----------
    names : sequence of str
        Dotted names of tensors, such as ``"model.layers.0.mlp.up_proj.weight"``.
    modules : str
        Last parts of the modules' names with commas between, such as ``"up_proj,down_proj"``; empty: all tensors.

    Raises
    ------
    SettingsError
        No tensor belongs to one of them.
    """
    owners = {name: name.rpartition(".")[0].rpartition(".")[2] for name in names}
    wanted = {module.strip() for module in modules.split(",")} if modules else set()
    known = set(owners.values()) - {""}
    if unknown := sorted(wanted - known):
        raise SettingsError(
            f"trained-modules = {modules!r}: no module {unknown[0]!r} has weights of its own; there are: "
            f"{', '.join(sorted(known))}"
        )
    return [name for name in names if not wanted or owners[name] in wanted]
