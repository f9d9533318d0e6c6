from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distro_fed.errors import LayoutMismatch, PeerLost, SettingsError, TrainingError, WrongBase
from distro_fed.optim import DistroAdamW, SimulatedPeers
from distro_fed.optim.exchange import Alone, Answer
from distro_fed.optim.momentum import LocalMomentum
from tests.optim.reference import ReferenceAdam, ReferencePeer, Signs, update

SHAPES = [(64, 128), (70, 50), (100,), (), (2, 64, 64), (3,)]


def parameters(seed: int = 0, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def set_gradients(params: Sequence[nn.Parameter], generator: torch.Generator) -> None:
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def read_votes(optimizer: DistroAdamW, frame: bytes) -> Signs:
    """A frame in the reference's words."""
    votes = optimizer.coder.open(frame, optimizer.steps, optimizer.chain)
    layout = optimizer.coder.order.layout
    out: Signs = {}
    for position, positive in zip(optimizer.coder.order.positions(votes.numbers), votes.positive, strict=True):
        tensor = int(np.searchsorted(layout.offsets, position, side="right")) - 1
        index = np.unravel_index(position - layout.offsets[tensor], layout.specs[tensor].shape)
        out[tensor, tuple(map(int, index))] = 1 if positive else -1
    return out


@pytest.mark.parametrize(("k", "local_step"), [(1, "gradient"), (5, "gradient"), (5, "adamw")])
def test_every_step_is_that_of_the_paper(k: int, local_step: Any) -> None:
    params = parameters()
    groups = [
        {"params": params[:2], "lr": 0.02, "weight_decay": 0.1},
        {"params": params[2:], "lr": 0.01, "weight_decay": 0.0},
    ]
    rates, decays = [0.02] * 2 + [0.01] * 4, [0.1] * 2 + [0.0] * 4
    optimizer = DistroAdamW(groups, k=k, momentum=0.9, local_step=local_step)
    count = 3
    momenta = [optimizer.new_momentum() for _ in range(count)]
    slow = [ReferencePeer(SHAPES, k, 0.9) for _ in range(count)]
    adams = [ReferenceAdam(SHAPES, (0.9, 0.95), 1e-8) for _ in range(count)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        before = [parameter.detach().double().numpy().copy() for parameter in params]
        frames, votes = {}, []
        for peer in range(count):
            set_gradients(params, generator)
            gradients = [parameter.grad.double().numpy() for parameter in params if parameter.grad is not None]
            frames[peer] = optimizer.local_frame(momenta[peer])
            directions = adams[peer].direction(gradients) if local_step == "adamw" else gradients
            votes.append(slow[peer].votes(directions, rates))
            assert read_votes(optimizer, frames[peer]) == votes[-1]
        optimizer.apply(Answer(frames, None, 0, 0))
        for momentum in momenta:
            momentum.delivered()
        for index, u in enumerate(update(SHAPES, votes)):
            exactly_zero = np.abs(u) < 1e-12  # but for the rounding of float64
            sign = np.where(exactly_zero, 0, np.sign(u))
            expected = (1 - rates[index] * decays[index]) * before[index] - rates[index] * sign
            found = params[index].detach().double().numpy()
            clear = (np.abs(u) > 1e-4) | exactly_zero  # between them the rounding of the basis decides
            np.testing.assert_allclose(found[clear], expected[clear], rtol=0, atol=1e-6)
            np.testing.assert_allclose(found, expected, rtol=0, atol=2.01 * rates[index])
            assert clear.mean() > 0.98


def test_alone_it_is_an_optimizer_like_any_other() -> None:
    target = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = DistroAdamW([weight], lr=0.05, k=64, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 60)

    def closure() -> float:
        optimizer.zero_grad()
        loss = ((weight - target) ** 2).mean()
        loss.backward()
        return float(loss.detach())

    first = optimizer.step(closure)
    for _ in range(60):
        last = optimizer.step(closure)
        schedule.step()
    assert first is not None and last is not None
    assert last < 0.6 * first
    assert optimizer.steps == 61 and optimizer.peers == (0,)
    assert optimizer.bytes_sent == optimizer.bytes_received == 0


def test_saved_and_loaded_it_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def train(optimizer: DistroAdamW, params: list[nn.Parameter], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(3):
            set_gradients(params, generator)
            optimizer.step()

    options: dict[str, Any] = {"k": 2, "lr": 0.01, "local_step": "adamw", "weight_decay": 0.1}
    params = parameters()
    optimizer = DistroAdamW(params, **options)
    train(optimizer, params, 1)
    optimizer.param_groups[0]["lr"] = 0.02
    torch.save({"model": params, "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    train(optimizer, params, 2)

    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    again = parameters(seed=7)
    resumed = DistroAdamW(again, **options)
    with torch.no_grad():
        for parameter, value in zip(again, saved["model"], strict=True):
            parameter.copy_(value)
    resumed.load_state_dict(saved["optimizer"])
    train(resumed, again, 2)
    assert resumed.parameter_digest() == optimizer.parameter_digest()
    assert resumed.chain == optimizer.chain
    assert resumed.steps == 6
    assert torch.equal(resumed.momentum.coefficients, optimizer.momentum.coefficients)


def test_a_saved_state_does_not_change_with_the_optimizer() -> None:
    params = parameters()
    optimizer = DistroAdamW(params, lr=0.01)
    state = optimizer.state_dict()
    set_gradients(params, torch.Generator().manual_seed(0))
    optimizer.step()
    assert not state["distro"]["momentum"]["coefficients"].any()


def test_a_state_of_something_else_is_refused() -> None:
    optimizer = DistroAdamW(parameters())
    with pytest.raises(LayoutMismatch, match="not that of a DistroAdamW"):
        optimizer.load_state_dict(torch.optim.SGD(parameters()).state_dict())
    with pytest.raises(LayoutMismatch, match="not that of a DistroAdamW"):
        optimizer.load_state_dict(DistroAdamW(parameters()[:-1]).state_dict())
    with pytest.raises(SettingsError, match="another local_step"):
        optimizer.load_state_dict(DistroAdamW(parameters(), local_step="adamw").state_dict())


class Broken(Alone):
    def exchange(self, frame: bytes, steps: int) -> Answer:
        raise PeerLost("the line is dead")


def test_a_failed_exchange_changes_nothing_and_loses_no_gradient() -> None:
    params = parameters()
    optimizer = DistroAdamW(params, lr=0.01, momentum=0.9, exchange=Broken())
    whole = optimizer.new_momentum()
    set_gradients(params, torch.Generator().manual_seed(0))
    whole.add_gradients(params, [0.01] * len(params))
    before, chain = optimizer.parameter_digest(), optimizer.chain
    with pytest.raises(PeerLost):
        optimizer.step()
    assert optimizer.parameter_digest() == before
    assert (optimizer.steps, optimizer.chain) == (0, chain)
    assert torch.equal(optimizer.momentum.coefficients, whole.coefficients)
    optimizer.exchange = Alone()
    optimizer.step()
    assert optimizer.parameter_digest() != before


def test_a_frame_that_is_not_in_the_answer_returns_to_the_buffer() -> None:
    params = parameters()
    optimizer = DistroAdamW(params, lr=0.01)
    others = optimizer.new_momentum()
    generator = torch.Generator().manual_seed(0)
    set_gradients(params, generator)
    frame = optimizer.local_frame(others)
    set_gradients(params, generator)
    optimizer.local_frame()
    unsent = optimizer.momentum.state_dict()["coefficients"]
    total = optimizer.coder.total({5: frame}, 0, optimizer.chain)
    optimizer.apply(Answer({}, optimizer.coder.answer(0, optimizer.chain, total), 0, 0))
    assert optimizer.peers == (5,)
    assert torch.equal(optimizer.momentum.coefficients, unsent)


@pytest.mark.parametrize("difference", ["rate", "decay", "start", "missed step"])
def test_a_peer_that_went_another_way_is_found_at_the_next_step(difference: str) -> None:
    ours, theirs = parameters(), parameters(seed=1 if difference == "start" else 0)
    mine = DistroAdamW(ours, lr=0.01, weight_decay=0.1)
    other = DistroAdamW(
        theirs, lr=0.02 if difference == "rate" else 0.01, weight_decay=0.2 if difference == "decay" else 0.1
    )
    for params in (ours, theirs):
        set_gradients(params, torch.Generator().manual_seed(0))
    first = mine.local_frame()
    if difference != "start":
        mine.apply(Answer({0: first}, None, 0, 0))
        if difference != "missed step":
            other.apply(Answer({0: first}, None, 0, 0))
    with pytest.raises(WrongBase, match=r"peer 3: .*synchronise"):
        mine.apply(Answer({3: other.local_frame()}, None, 0, 0))


def test_frozen_and_unused_parameters() -> None:
    frozen, used, unused = parameters(shapes=[(64, 64)] * 3)
    frozen.requires_grad_(False)
    optimizer = DistroAdamW([frozen, used, unused], lr=0.01)
    used.grad = torch.randn(64, 64)
    before = [parameter.detach().clone() for parameter in (frozen, used, unused)]
    optimizer.step()
    assert torch.equal(frozen, before[0])
    assert not torch.equal(used, before[1])
    assert torch.equal(unused, before[2])  # an empty chunk sends nothing


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_step_in_their_own(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.ones(64, 64, dtype=dtype))
    optimizer = DistroAdamW([weight], lr=2**-6)
    weight.grad = torch.full((64, 64), 0.5, dtype=dtype)
    optimizer.step()
    assert weight.dtype == dtype
    assert torch.equal(weight, torch.full((64, 64), 1 - 2**-6, dtype=dtype))


def test_parameters_and_gradients_in_any_memory_order() -> None:
    ours, theirs = nn.Parameter(torch.ones(128, 64)), nn.Parameter(torch.ones(64, 128).T)
    gradient = torch.randn(128, 64, generator=torch.Generator().manual_seed(0))
    ours.grad, theirs.grad = gradient, gradient.T.contiguous().T
    first, second = DistroAdamW([ours]), DistroAdamW([theirs])
    assert first.local_frame() == second.local_frame()
    first.step()
    second.step()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k = 0"),
        ({"k": 4097}, "k = 4097"),
        ({"k": 1.5}, "k = 1.5"),
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"local_step": "sgd"}, "sgd"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] = 1.0"),
        ({"eps": 0.0}, "eps = 0.0"),
        ({"lr": -1.0}, "lr = -1.0"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"weight_decay": float("inf")}, "weight_decay = inf"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DistroAdamW(parameters(), **options)


def test_nothing_to_train_and_later_groups() -> None:
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    with pytest.raises(LayoutMismatch, match="no parameter to train"):
        DistroAdamW([frozen])
    with pytest.raises(SettingsError, match="cannot be added later"):
        DistroAdamW(parameters()).add_param_group({"params": [nn.Parameter(torch.ones(3))]})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing(value: float) -> None:
    params = parameters()
    optimizer = DistroAdamW(params, local_step="adamw")
    set_gradients(params, torch.Generator().manual_seed(0))
    optimizer.step()
    before, state = optimizer.parameter_digest(), optimizer.momentum.state_dict()
    assert params[1].grad is not None
    params[1].grad[3, 3] = value
    with pytest.raises(TrainingError, match="gradient of parameter 1"):
        optimizer.step()
    assert optimizer.parameter_digest() == before
    assert torch.equal(optimizer.momentum.coefficients, state["coefficients"])
    assert optimizer.momentum.steps == 1


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = DistroAdamW(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(SettingsError, match="sparse=False"):
        optimizer.step()


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, distro_fed; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "False"


def test_equal_seeds_give_equal_bits_with_any_number_of_threads() -> None:
    digests = set()
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            params = parameters(shapes=[(256, 192), (1000,)])
            peers = SimulatedPeers(DistroAdamW(params, lr=0.01, k=3), count=2)
            generator = torch.Generator().manual_seed(5)
            for _ in range(3):
                for peer in peers.peers:
                    set_gradients(params, generator)
                    peers.collect(peer)
                peers.step()
            digests.add(peers.optimizer.parameter_digest())
    finally:
        torch.set_num_threads(threads)
    assert len(digests) == 1


def test_the_buffer_is_that_of_the_paper_in_another_basis() -> None:
    from distro_fed.compression.dct import add_inverse_dct_

    params = parameters()
    optimizer = DistroAdamW(params, momentum=0.9, k=3)
    momentum: LocalMomentum = optimizer.new_momentum()
    slow = ReferencePeer(SHAPES, 3, 0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        set_gradients(params, generator)
        momentum.add_gradients(params, [0.1] * len(params))
        momentum.take(3)
        momentum.delivered()
        slow.votes([p.grad.double().numpy() for p in params if p.grad is not None], [0.1] * len(params))
    flat = torch.zeros(optimizer.coder.order.layout.numel)
    add_inverse_dct_(momentum.coefficients.clone(), flat, optimizer.coder.order.layout)
    expected = np.concatenate([e.reshape(-1) for e in slow.e])
    np.testing.assert_allclose(flat.numpy(), expected, atol=1e-5)


def test_a_state_can_be_pickled_with_plain_types() -> None:
    buffer = io.BytesIO()
    torch.save(DistroAdamW(parameters()).state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["distro"]["steps"] == 0
