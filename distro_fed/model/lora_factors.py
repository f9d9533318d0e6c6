"""LoRA of which less than both factors is trained: B alone, A and B in turn, or a small core between them.

LoRA changes a weight (out x in) by ``B A``, and the mean of the members' products is not the product of their means. It
is where one factor is the same at all members: then what they send adds up exactly, and fewer values are sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from distro_fed.compression.orthonormal import coarse, orthonormal_rows
from distro_fed.compression.public_rows import public_rows
from distro_fed.errors import SettingsError
from distro_fed.model.trainable import tensor_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from peft import PeftModel

#: root mean square of the entries of a row, times the root of its length, as peft draws A
_PEFT_LENGTH = 3.0**-0.5
#: rounds of the power iteration for the leading singular vectors
_ITERATIONS = 2
_ADAPTER = "default"


class CoreFactor(nn.Module):
    """Stands in the place of peft's A: ``x -> R A x`` with a fixed A and a trained R, zero at first.

    K. Balazy et al., "LoRA-XS", arXiv 2405.17604, section 3; R. Singhal et al., "Fed-SB", arXiv 2502.15436.

    Parameters
    ----------
    rows : torch.Tensor
        A, float32, shape (rank, in).
    """

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows, requires_grad=False)
        self.core = nn.Parameter(rows.new_zeros(rows.shape[0], rows.shape[0]))

    @property
    def weight(self) -> torch.Tensor:
        """``R A``, which peft merges."""
        return self.core @ self.rows

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of shape (..., rank)."""
        return nn.functional.linear(nn.functional.linear(inputs, self.rows), self.core)


def train_b_only(adapted: PeftModel, seed: int) -> None:
    """Fix every A; only B is trained (Y. Sun et al., "FFA-LoRA", arXiv 2403.12313).

    A has orthogonal rows from the seed, as long as peft's own: the same at all members to the last bit.
    """
    for name, layer in _pairs(adapted, "b"):
        first = layer.lora_A[_ADAPTER].weight
        rows = coarse(_seeded(name, first.shape[1], first.shape[0], seed) * np.float32(_PEFT_LENGTH))
        first.data = torch.from_numpy(rows).to(first)
        first.requires_grad_(False)


def train_core(adapted: PeftModel, seed: int) -> None:
    """Fix every A and B at the leading singular vectors of the weight that they adapt; only R in ``B R A`` is trained.

    Singular vectors of a library differ by machine, even in sign, and R means something between these only. So they
    are found by a power iteration of its own, whose result is rounded so that all members get the same bits: from
    seeded rows, in float64, rounded to 12 significant bits after every step. Two rounds of it hold nine tenths of the
    energy that the exact vectors hold, in a tenth of the time.
    """
    for name, layer in _pairs(adapted, "core"):
        first, second = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
        weight = layer.get_base_layer().weight.detach().double().numpy()
        left, right = leading_vectors(weight, first.shape[0], f"{seed}\0{name}")
        second.data = torch.from_numpy(np.ascontiguousarray(left.T)).to(second)
        second.requires_grad_(False)
        layer.lora_A[_ADAPTER] = CoreFactor(torch.from_numpy(right).to(first))


def sides_in_turn(adapted: PeftModel) -> tuple[set[int], set[int]]:
    """Ids of the parameters that even versions train (B), and odd ones (A).

    B starts at zero, and so A has no gradient before B was trained once (RoLoRA, S. Chen et al., arXiv 2409.02346).
    """
    pairs = [layer for _, layer in _pairs(adapted, "alternating")]
    return {id(pair.lora_B[_ADAPTER].weight) for pair in pairs}, {id(pair.lora_A[_ADAPTER].weight) for pair in pairs}


@contextmanager
def folded_cores(adapted: PeftModel) -> Iterator[None]:
    """While it is entered the adapter is ordinary LoRA: A, and B R in place of B."""
    swapped: list[tuple[Any, CoreFactor, torch.Tensor]] = []
    for _, layer in _lora_layers(adapted):
        first = layer.lora_A[_ADAPTER]
        if isinstance(first, CoreFactor):
            second = layer.lora_B[_ADAPTER].weight
            swapped.append((layer, first, second.data))
            plain = nn.Linear(first.rows.shape[1], first.rows.shape[0], bias=False, device="meta")
            plain.weight = first.rows
            layer.lora_A[_ADAPTER] = plain
            second.data = second.data @ first.core.detach()
    try:
        yield
    finally:
        for layer, first, second in swapped:
            layer.lora_A[_ADAPTER] = first
            layer.lora_B[_ADAPTER].weight.data = second


def frozen_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """8 bytes (hex) over an adapter's tensors that are not trained; empty if there are none.

    Members make these themselves; were they to differ, the same update would mean something else to each.
    """
    state, found = hashlib.blake2b(digest_size=8, person=b"df-frozen"), False
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        state.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\n".encode())
        state.update(tensor_bytes(tensor))
        found = True
    return state.hexdigest() if found else ""


def leading_vectors(
    weight: NDArray[np.float64], rank: int, seed: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Nearly the singular vectors of the largest singular values, as rows.

    Parameters
    ----------
    weight : ndarray of float64, shape (out, in)
    rank : int
        At most the smaller side.
    seed : str

    Returns
    -------
    tuple of ndarray of float32
        Left vectors, shape (rank, out), and right vectors, shape (rank, in); both orthonormal up to rounding.
    """
    seeded_left, seeded_right = (partial(_seeded, seed, size, rank, 0) for size in weight.shape)
    right = seeded_right()
    for _ in range(_ITERATIONS):
        left = orthonormal_rows(right @ weight.T, seeded_left)
        right = orthonormal_rows(left @ weight, seeded_right)
    return left, right


def _seeded(name: str, size: int, rank: int, seed: int) -> NDArray[np.float32]:
    return coarse(public_rows(f"distro-fed adapter\0{seed}\0{name}\0{size}", size, rank))


def _lora_layers(adapted: PeftModel) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    for name, module in adapted.named_modules():
        if isinstance(module, LoraLayer) and _ADAPTER in module.lora_A:
            yield name, module


def _pairs(adapted: PeftModel, factors: str) -> list[tuple[str, Any]]:
    """LoRA layers by name, if pairs of A and B on linear layers are all that the adapter trains."""
    layers = list(_lora_layers(adapted))
    pairs = {id(parameter) for _, layer in layers for side in (layer.lora_A, layer.lora_B)
             for parameter in side.parameters() if parameter.ndim == 2}  # fmt: skip
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and id(parameter) not in pairs:
            raise SettingsError(
                f"lora-factors = {factors!r} is for an adapter of which nothing is trained but pairs of A and B on "
                f"linear layers; {name!r} would be too: leave out the peft.* setting that adds it, or take 'both'"
            )
    drawn_anew = getattr(adapted.peft_config[_ADAPTER], "init_lora_weights", True) is not True
    if drawn_anew or any(layer.lora_variant for _, layer in layers):
        raise SettingsError(
            f"lora-factors = {factors!r} needs plain LoRA: leave out peft.init-lora-weights and what makes a variant, "
            "or take 'both'"
        )
    for name, layer in layers:
        rank, most = layer.r[_ADAPTER], min(layer.in_features, layer.out_features)
        if rank > most:
            raise SettingsError(
                f"peft.r = {rank} is more than the smaller side of {name!r} ({most}): take lora-factors = 'both' or a "
                "lower rank"
            )
    return layers
