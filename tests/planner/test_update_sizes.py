"""Every formula against the encoding that it stands for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from distro_fed.compression import make_compressor
from distro_fed.compression.base import RoundKey
from distro_fed.compression.dct import grid_shapes
from distro_fed.compression.positions import encode_positions
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec
from distro_fed.model.trainable import Trainable, trainable_full
from distro_fed.planner.codec import Codec
from distro_fed.planner.links import Network, equal_nodes
from distro_fed.planner.model_shapes import ModelShape
from distro_fed.planner.plan import Scenario, make_plan
from distro_fed.planner.update_sizes import (
    EMPTY_REQUEST_BYTES,
    EVALUATION_REPLY_BYTES,
    body_bytes,
    chunk_sizes,
    frame_bytes,
    position_bits,
    reply_bytes,
    request_bytes,
    selected,
)
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.update import OVERHEAD_BYTES
from tests import federation

LAYOUT = Layout(
    [
        TensorSpec("embedding", (272, 128), kind="embedding"),
        TensorSpec("wide", (130, 384), kind="matrix"),
        TensorSpec("odd", (127, 131), kind="matrix"),
        TensorSpec("narrow", (5, 64), kind="matrix"),
        TensorSpec("norm", (129,), kind="vector"),
        TensorSpec("kernel", (24, 3, 11), kind="other"),
    ]
)
FIXED = [
    Codec("dense"),
    Codec("dense", dense_dtype="bfloat16"),
    *(Codec("quantized", bits=bits) for bits in (1, 3, 8)),
    *(
        Codec(name, rank=rank, bits=bits)
        for name in ("subspace", "tracking")
        for rank, bits in ((1, 1), (4, 2), (5, 8))
    ),
]
SPARSE = [
    *(Codec(name, density=density) for name in ("topk", "dct-topk") for density in (1 / 3, 1 / 8, 1 / 64, 1 / 512)),
    Codec("topk", density=1 / 32, value_bits=2),
    Codec("dct-topk", density=1 / 32, value_bits=2),
    Codec("topk", density=1.0),
    *(Codec("tracking-topk", rank=4, density=density) for density in (1 / 3, 1 / 32)),
    Codec("tracking-topk", rank=5, density=1 / 16, value_bits=2),
]
#: messages differ by the length of names and numbers
SLACK = 60


def encoded(codec: Codec, round_: int = 1) -> bytes:
    compressor = make_compressor(
        codec.name,
        density=codec.density,
        value_bits=codec.value_bits,
        bits=codec.bits,
        rank=codec.rank,
        dtype=codec.dense_dtype,
    )
    space = compressor.space(LAYOUT, RoundKey(0, round_, version=round_ - 1))
    coefficients = torch.randn(space.numel, generator=torch.Generator().manual_seed(0))
    return compressor.encode(coefficients, space, seed=0)


@pytest.mark.parametrize("codec", FIXED, ids=Codec.describe)
def test_a_fixed_size_is_exact(codec: Codec) -> None:
    assert body_bytes(codec, LAYOUT) == len(encoded(codec))
    assert frame_bytes(codec, LAYOUT) == len(encoded(codec)) + OVERHEAD_BYTES


@pytest.mark.parametrize("codec", SPARSE, ids=Codec.describe)
def test_a_sparse_size_is_within_3_percent(codec: Codec) -> None:
    body = encoded(codec)
    assert selected(codec, LAYOUT) == int.from_bytes(body[:8], "little")
    assert body_bytes(codec, LAYOUT) == pytest.approx(len(body), rel=0.03)


@pytest.mark.parametrize("name", ["topk", "dct-topk", "tracking-topk"])
def test_a_second_bit_and_a_second_scale_are_exact(name: str) -> None:
    one, two = Codec(name, density=1 / 32), Codec(name, density=1 / 32, value_bits=2)
    assert body_bytes(two, LAYOUT) - body_bytes(one, LAYOUT) == len(encoded(two)) - len(encoded(one))


@pytest.mark.parametrize(
    "codec",
    [Codec("lowrank", rank=4, bits=8), Codec("lowrank", bits=1)],
    ids=Codec.describe,
)
def test_low_rank_is_the_mean_of_its_two_sides(codec: Codec) -> None:
    sizes = [len(encoded(codec, round_)) for round_ in (1, 2)]
    assert sizes[0] != sizes[1]
    assert body_bytes(codec, LAYOUT) == math.ceil(sum(sizes) / 2)


@given(st.lists(st.integers(0, 200), max_size=4).map(tuple))
@settings(deadline=None)
def test_chunks_are_those_of_the_transform(shape: tuple[int, ...]) -> None:
    assert sorted(chunk_sizes(shape)) == sorted(grid_shapes(shape, 64))


@pytest.mark.parametrize("density", [1, 1 / 2, 1 / 8, 1 / 50, 1 / 64, 1 / 700, 1 / 4096])
def test_positions_at_random(density: float) -> None:
    bound = 2**20
    count = round(density * bound)
    positions = np.sort(np.random.default_rng(0).choice(bound, count, replace=False))
    assert position_bits(count, bound) / 8 == pytest.approx(len(encode_positions(positions)), rel=0.03)
    assert position_bits(0, bound) == 0


def linear(values: int) -> Callable[..., Trainable]:
    def build(*_: object) -> Trainable:
        model = nn.Linear(values, 1, bias=False)
        model.weight.data = torch.randn(1, values, generator=torch.Generator().manual_seed(0))
        return trainable_full(model)

    return build


def measured(values: int, monkeypatch: pytest.MonkeyPatch, state_dir: str) -> TrafficLedger:
    monkeypatch.setattr(federation, "make_model", linear(values))
    strategy, _ = federation.run(rounds=3, nodes=2, model=linear(values), state_dir=state_dir)
    return strategy.ledger


@pytest.mark.parametrize("values", [10, 100_000, 1_400_000])
def test_messages_are_those_that_the_ledger_counts(
    values: int, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = measured(values, monkeypatch, str(tmp_path_factory.mktemp("state")))
    layout = Layout([TensorSpec("weight", (1, values), kind="matrix")])
    frame = frame_bytes(Codec("dense"), layout)
    client = ledger.clients()[0]
    up, down = ledger.per_client("up")[client], ledger.per_client("down")[client]
    assert up == pytest.approx(3 * reply_bytes(frame) + EVALUATION_REPLY_BYTES, abs=4 * SLACK)
    assert down == pytest.approx(3 * request_bytes(frame) + EMPTY_REQUEST_BYTES, abs=4 * SLACK)
    plan = make_plan(
        Scenario(
            model=ModelShape("linear", layout, exact=True),
            mode="full",
            layout=layout,
            uplink=Codec("dense"),
            downlink=Codec("dense"),
            network=Network(equal_nodes(2)),
            topology="server",
            local_steps=1,
            rounds=3,
        )
    )
    assert plan.per_run.sent == pytest.approx(up, abs=4 * SLACK)
    assert plan.per_run.received == pytest.approx(down, abs=4 * SLACK)


def test_a_single_message_of_each_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    ledger = measured(1000, monkeypatch, str(tmp_path))
    frame = OVERHEAD_BYTES + 4000
    half = len(ledger.clients())
    assert ledger.per_round("down")[1] / half == pytest.approx(EMPTY_REQUEST_BYTES, abs=SLACK)
    assert ledger.per_round("down")[2] / half == pytest.approx(request_bytes(frame), abs=SLACK)
    assert ledger.per_round("up")[2] / half == pytest.approx(reply_bytes(frame), abs=SLACK)


@pytest.mark.parametrize(
    "codec",
    [
        Codec("subspace", rank=200),
        Codec("lowrank", rank=300),
        Codec("tracking", rank=200),
        Codec("tracking-topk", 1, 200),
    ],
    ids=Codec.describe,
)
def test_a_rank_above_every_matrix(codec: Codec) -> None:
    with pytest.raises(SettingsError, match="leaves nothing to send"):
        body_bytes(codec, LAYOUT)
