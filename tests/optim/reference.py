"""One step of DeMo, written from the paper with plain loops over chunks, in float64.

Peng et al., arXiv 2411.19870, Algorithm 1, with one bit for each coefficient that is sent. The buffer is kept among
the parameters, as there, not among the coefficients. A coefficient is named by its tensor and by the index that it
has if every chunk is replaced by its DCT in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Coefficient = tuple[int, tuple[int, ...]]
Signs = dict[Coefficient, int]


@cache
def dct_matrix(size: int) -> Array:
    rows = np.zeros((size, size))
    for k in range(size):
        for i in range(size):
            rows[k, i] = math.cos(math.pi * (2 * i + 1) * k / (2 * size)) * math.sqrt((1 if k == 0 else 2) / size)
    return rows


def cut(size: int) -> list[slice]:
    """An axis in the fewest pieces of at most 64, of equal size up to one."""
    pieces = np.array_split(np.arange(size), -(-size // 64))
    return [slice(int(piece[0]), int(piece[-1]) + 1) for piece in pieces]


def chunks(shape: tuple[int, ...]) -> Iterator[tuple[slice | int, ...]]:
    if len(shape) == 0:
        yield ()
    elif len(shape) == 1:
        yield from ((piece,) for piece in cut(shape[0]))
    else:
        for leading in product(*(range(size) for size in shape[:-2])):
            for rows in cut(shape[-2]):
                for columns in cut(shape[-1]):
                    yield (*leading, rows, columns)


def transform(values: Array, *, inverse: bool = False) -> Array:
    out = np.array(values, np.float64)
    for chunk in chunks(values.shape):
        part = out[chunk]
        if part.ndim == 1:
            d = dct_matrix(part.size)
            out[chunk] = (d.T if inverse else d) @ part
        elif part.ndim == 2:
            left, right = dct_matrix(part.shape[0]), dct_matrix(part.shape[1])
            out[chunk] = left.T @ part @ right if inverse else left @ part @ right.T
    return out


def select(coefficients: Sequence[Array], k: int) -> list[Coefficient]:
    """The k largest of every chunk of 4096; everything else is one pool with the same share, at least one."""
    pool: list[Coefficient] = []
    chosen: list[Coefficient] = []

    def magnitude(name: Coefficient) -> float:
        return -abs(float(coefficients[name[0]][name[1]]))

    for tensor, values in enumerate(coefficients):
        for chunk in chunks(values.shape):
            ranges = [range(axis.start, axis.stop) if isinstance(axis, slice) else [axis] for axis in chunk]
            names = [(tensor, index) for index in product(*ranges)]
            if len(chunk) >= 2 and len(names) == 4096:
                chosen += sorted(names, key=magnitude)[:k]
            else:
                pool += names
    chosen += sorted(pool, key=magnitude)[: max(1, round(k * len(pool) / 4096))]
    return [name for name in chosen if magnitude(name) != 0]


class ReferencePeer:
    """Momentum of one peer."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], k: int, beta: float) -> None:
        self.e = [np.zeros(shape) for shape in shapes]
        self.k, self.beta = k, beta

    def votes(self, gradients: Sequence[Array], rates: Sequence[float]) -> Signs:
        for e, gradient, rate in zip(self.e, gradients, rates, strict=True):
            e[...] = self.beta * e + rate * gradient
        coefficients = [transform(e) for e in self.e]
        chosen = select(coefficients, self.k)
        sent = [np.zeros(e.shape) for e in self.e]
        for tensor, index in chosen:
            sent[tensor][index] = coefficients[tensor][index]
        for e, q in zip(self.e, sent, strict=True):
            e -= transform(q, inverse=True)
        return {(tensor, index): int(np.sign(coefficients[tensor][index])) for tensor, index in chosen}


class ReferenceAdam:
    """Direction of AdamW (Kingma and Ba, arXiv 1412.6980, Algorithm 1)."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], betas: tuple[float, float], eps: float) -> None:
        self.m = [np.zeros(shape) for shape in shapes]
        self.v = [np.zeros(shape) for shape in shapes]
        self.betas, self.eps, self.t = betas, eps, 0

    def direction(self, gradients: Sequence[Array]) -> list[Array]:
        self.t += 1
        b1, b2 = self.betas
        out = []
        for i, g in enumerate(gradients):
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
            out.append(self.m[i] / (1 - b1**self.t) / (np.sqrt(self.v[i] / (1 - b2**self.t)) + self.eps))
        return out


def update(shapes: Sequence[tuple[int, ...]], votes: Sequence[Signs]) -> list[Array]:
    """Inverse DCT of the mean over those who sent a coefficient, before its sign is taken."""
    total = [np.zeros(shape) for shape in shapes]
    for name in {name for vote in votes for name in vote}:
        said = [vote[name] for vote in votes if name in vote]
        total[name[0]][name[1]] = sum(said) / len(said)
    return [transform(coefficients, inverse=True) for coefficients in total]
