"""Bytes of one update: body, frame and Flower message, as formulas of the layout.

``dense``, ``quantized``, ``subspace``, ``lowrank`` and ``tracking`` have a fixed size. ``topk``, ``dct-topk``
and ``tracking-topk`` send positions, whose code depends on where they lie; the formula is the expected size for
positions at random, and real ones take less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from distro_fed.compression.bits import packed_size
from distro_fed.compression.positions import GROUP
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec
from distro_fed.planner.codec import Codec
from distro_fed.update import OVERHEAD_BYTES

# What Flower's messages and the records beside the frame take, measured on runs of this package
# (tests/planner/test_update_sizes.py); it varies by some 50 bytes with names, metrics and the size of numbers.
REPLY_BYTES = 1220
REQUEST_BYTES = 900
EMPTY_REQUEST_BYTES = 585
EVALUATION_REPLY_BYTES = 660
#: Flower cuts an array into pieces of this size, each of which costs an object of its own
_PIECE, _PIECE_BYTES = 5 * 2**20, 88

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SCALE_BYTES = 2
_COUNT_BYTES = 8
_CHUNK = 64


def body_bytes(codec: Codec, layout: Layout) -> int:
    """Bytes that the compressor's code takes for an update of these trainable tensors.

    For ``lowrank``, which sends one factor of a matrix and then the other in turn, the mean of both.

    Raises
    ------
    SettingsError
        If ``subspace``, ``lowrank``, ``tracking`` or ``tracking-topk`` would exchange no matrix.
    """
    if codec.name == "dense":
        return layout.numel * _ITEM_BYTES[codec.dense_dtype]
    if codec.name == "quantized":
        return _quantized_bytes(layout.numel, len(layout), codec.bits)
    if codec.name == "subspace":
        projected = _linear_weights(codec, layout)
        rows = sum(spec.shape[0] for spec in projected)
        _refuse_nothing(rows, codec)
        return _quantized_bytes(rows * codec.rank, len(projected), codec.bits)
    if codec.name == "lowrank":
        return _lowrank_bytes(codec, layout)
    if codec.name == "tracking":
        factors = _factors(codec, layout)
        return _quantized_bytes(sum(factors), codec.rank * len(factors), codec.bits)
    tensors = _factors(codec, layout) if codec.name == "tracking-topk" else [spec.numel for spec in layout]
    return _sparse_bytes(selected(codec, layout), sum(tensors), len(tensors), codec.value_bits)


def frame_bytes(codec: Codec, layout: Layout) -> int:
    """Bytes of a whole frame (:mod:`distro_fed.update`)."""
    return OVERHEAD_BYTES + body_bytes(codec, layout)


def reply_bytes(frame: int) -> int:
    """Bytes of the Flower message that carries a client's frame up."""
    return REPLY_BYTES + _in_pieces(frame)


def request_bytes(frame: int) -> int:
    """Bytes of the Flower message that carries an aggregated frame down."""
    return REQUEST_BYTES + _in_pieces(frame)


def position_bits(count: int, bound: int) -> float:
    """Expected bits of ``count`` random positions below ``bound`` (:mod:`distro_fed.compression.positions`).

    The gaps are geometric. With Rice parameter ``r`` a gap ``g`` takes ``r + 1 + floor(g / 2**r)`` bits, on average
    ``r + 1 / (1 - q)`` where ``q = (1 - count / bound)**(2**r)``.
    """
    if count == 0:
        return 0.0
    if count == bound:
        return count + 5.0 * math.ceil(count / GROUP)
    miss = math.log1p(-count / bound)
    per_gap = min(r - 1 / math.expm1(miss * 2**r) for r in range(32))
    return count * per_gap + 5 * math.ceil(count / GROUP)


def chunk_sizes(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pairs (chunks, values in each) that ``dct-topk`` cuts a tensor into (:mod:`distro_fed.compression.dct`)."""
    if math.prod(shape) == 0:
        return []
    matrices = math.prod(shape[:-2])
    sizes = [(matrices, 1)]
    for axis in shape[-2:] or (1,):
        pieces = -(-axis // _CHUNK)
        length, longer = divmod(axis, pieces)
        cut = [(longer, length + 1), (pieces - longer, length)]
        sizes = [(count * runs, size * side) for count, size in sizes for runs, side in cut if runs]
    return sizes


def selected(codec: Codec, layout: Layout) -> int:
    """How many coefficients ``topk``, ``dct-topk`` or ``tracking-topk`` sends."""
    if codec.name == "tracking-topk":
        return _share(codec.density, sum(_factors(codec, layout)))
    if codec.name == "topk":
        return _share(codec.density, layout.numel)
    in_chunks = pool = 0
    for spec in layout:
        chunks = [(count, round(codec.density * size)) for count, size in chunk_sizes(spec.shape)]
        if len(spec.shape) < 2 or any(quota == 0 for _, quota in chunks):
            pool += spec.numel
        else:
            in_chunks += sum(count * quota for count, quota in chunks)
    return in_chunks + _share(codec.density, pool)


def _share(density: float, size: int) -> int:
    return min(size, max(1, round(density * size)))


def _linear_weights(codec: Codec, layout: Layout) -> list[TensorSpec]:
    """Those that are trained in a subspace."""
    return [spec for spec in layout if spec.kind == "matrix" and len(spec.shape) == 2 and min(spec.shape) > codec.rank]


def _factors(codec: Codec, layout: Layout) -> list[int]:
    """Values of each of the factors that ``tracking`` and ``tracking-topk`` train: two for every weight."""
    factors = [codec.rank * side for spec in _linear_weights(codec, layout) for side in spec.shape]
    _refuse_nothing(len(factors), codec)
    return factors


def _lowrank_bytes(codec: Codec, layout: Iterable[TensorSpec]) -> int:
    """Mean of an update that sends the left factors and one that sends the right ones."""
    left = right = whole = tensors = 0
    for spec in layout:
        rows, columns = (spec.shape[0], math.prod(spec.shape[1:])) if spec.shape else (1, 1)
        if len(spec.shape) > 1 and min(rows, columns) > codec.rank:
            left, right = left + codec.rank * rows, right + codec.rank * columns
            tensors += codec.rank  # a scale for each column of a factor
        else:
            whole, tensors = whole + spec.numel, tensors + 1
    _refuse_nothing(left, codec)
    sizes = [_quantized_bytes(side + whole, tensors, codec.bits) for side in (left, right)]
    return math.ceil(sum(sizes) / 2)


def _refuse_nothing(rows: int, codec: Codec) -> None:
    if rows == 0:
        raise SettingsError(
            f"{codec.describe()} leaves nothing to send: no matrix has both sides above the rank; "
            "lower it, or use quantized or topk"
        )


def _quantized_bytes(values: int, tensors: int, bits: int) -> int:
    return _SCALE_BYTES * tensors + packed_size(values, bits)


def _sparse_bytes(count: int, values: int, tensors: int, value_bits: int) -> int:
    positions = math.ceil(position_bits(count, values) / 8)
    return _COUNT_BYTES + _SCALE_BYTES * tensors * value_bits + packed_size(count, value_bits) + positions


def _in_pieces(frame: int) -> int:
    return frame + _PIECE_BYTES * (math.ceil(frame / _PIECE) - 1)
