from __future__ import annotations

import pytest
import torch
from torch import nn

from distro_fed.errors import LayoutMismatch, SettingsError, WrongCodec, WrongLayout
from distro_fed.optim import DistroAdamW, FrameCoder
from distro_fed.optim.frames import next_chain
from distro_fed.update import OVERHEAD_BYTES


def weights(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


def test_a_frame_is_its_body_and_the_overhead_of_every_update() -> None:
    optimizer = DistroAdamW(weights((128, 256)))
    assert len(optimizer.local_frame()) == OVERHEAD_BYTES + 13 + 12 + 1  # 8 chunks of 12 and 1 bits


def test_k_must_be_the_same_for_all() -> None:
    optimizer = DistroAdamW(weights((64, 64)), k=1)
    other = FrameCoder.of_parameters(optimizer.parameters, 2)
    with pytest.raises(WrongCodec, match="k must be the same"):
        other.open(optimizer.local_frame(), 0, optimizer.chain)


def test_other_tensors_are_refused() -> None:
    optimizer = DistroAdamW(weights((64, 64)))
    other = FrameCoder.of_parameters(weights((64, 64), (3,)), 1)
    with pytest.raises(WrongLayout):
        other.open(optimizer.local_frame(), 0, optimizer.chain)


def test_a_frame_of_a_peer_is_no_answer_and_the_other_way_round() -> None:
    optimizer = DistroAdamW(weights((64, 64)))
    frame, chain, coder = optimizer.local_frame(), optimizer.chain, optimizer.coder
    answer = coder.answer(0, chain, coder.total({0: frame}, 0, chain))
    with pytest.raises(WrongCodec, match="CLIENT, expected AGGREGATE"):
        coder.open_answer(frame, 0, chain)
    with pytest.raises(WrongCodec, match="AGGREGATE, expected CLIENT"):
        coder.open(answer, 0, chain)


def test_a_coder_needs_shapes_only() -> None:
    with torch.device("meta"):
        model = nn.Linear(128, 64)
    real = nn.Linear(128, 64)
    assert (
        FrameCoder.of_parameters(model.parameters(), 1).order.layout
        == DistroAdamW(real.parameters()).coder.order.layout
    )


def test_options_of_a_coder_are_checked() -> None:
    with pytest.raises(SettingsError, match="k = 0"):
        FrameCoder.of_parameters(weights((64, 64)), 0)
    with pytest.raises(LayoutMismatch, match="no parameter"):
        FrameCoder.of_parameters([], 1)


def test_a_chain_depends_on_votes_rates_and_decays() -> None:
    optimizer = DistroAdamW(weights((64, 64)))
    votes = optimizer.coder.open(optimizer.local_frame(), 0, optimizer.chain)
    chains = {
        next_chain(start, votes, rates, decays)
        for start in (bytes(16), b"x" * 16)
        for rates, decays in (([0.1], [0.0]), ([0.1], [0.1]), ([0.2], [0.0]), ([0.0], [0.1]))
    }
    assert len(chains) == 8
