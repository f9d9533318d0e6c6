from __future__ import annotations

import pytest
import torch
from torch import nn

from distro_fed.errors import FederationError, SettingsError
from distro_fed.optim import DistroAdamW, SimulatedPeers
from distro_fed.optim.exchange import Answer


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((128, 64), (70,))]


def set_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def run(topology: str, steps: int = 4, count: int = 3) -> SimulatedPeers:
    parameters = weights()
    peers = SimulatedPeers(DistroAdamW(parameters, lr=0.01, k=2), count, topology)  # type: ignore[arg-type]
    for step in range(steps):
        for peer in peers.peers:
            set_gradients(parameters, 100 * step + peer)
            peers.collect(peer)
        peers.step()
    return peers


def test_one_copy_of_the_model_stands_for_all() -> None:
    """The same peers, each with a model and an optimizer of its own."""
    simulated = run("all-gather")
    models = [weights() for _ in range(3)]
    optimizers = [DistroAdamW(parameters, lr=0.01, k=2) for parameters in models]
    for step in range(4):
        frames = {}
        for peer, optimizer in enumerate(optimizers):
            set_gradients(models[peer], 100 * step + peer)
            frames[peer] = optimizer.local_frame()
        for optimizer in optimizers:
            optimizer.apply(Answer(frames, None, 0, 0))
    digests = {optimizer.parameter_digest() for optimizer in [*optimizers, simulated.optimizer]}
    assert len(digests) == 1
    assert len({optimizer.chain for optimizer in [*optimizers, simulated.optimizer]}) == 1


def test_both_topologies_give_the_same_bits_and_other_bytes() -> None:
    gathered, summed = run("all-gather"), run("aggregator")
    assert gathered.optimizer.parameter_digest() == summed.optimizer.parameter_digest()
    assert gathered.optimizer.chain == summed.optimizer.chain
    assert gathered.bytes_sent[0] == gathered.bytes_received[0] > summed.bytes_sent[0]
    assert set(summed.bytes_received.values()) == {summed.bytes_received[0]}


def test_peers_join_and_leave_between_steps() -> None:
    parameters = weights()
    peers = SimulatedPeers(DistroAdamW(parameters, lr=0.01), 2)
    set_gradients(parameters, 1)
    peers.collect(0)
    peers.step()  # peer 1 gave nothing
    assert peers.optimizer.peers == (0,)
    peers.join(5)
    peers.leave(0)
    for peer in peers.peers:
        set_gradients(parameters, peer)
        peers.collect(peer)
    peers.step()
    assert peers.optimizer.peers == (1, 5)
    assert peers.optimizer.steps == 2


def test_misuse_is_named() -> None:
    parameters = weights()
    optimizer = DistroAdamW(parameters)
    with pytest.raises(SettingsError, match="count = 0"):
        SimulatedPeers(optimizer, 0)
    with pytest.raises(SettingsError, match="'ring'"):
        SimulatedPeers(optimizer, 2, "ring")  # type: ignore[arg-type]
    peers = SimulatedPeers(optimizer, 2)
    with pytest.raises(FederationError, match="no peer has given"):
        peers.step()
    with pytest.raises(FederationError, match=r"no peer 9; there are 0, 1"):
        peers.collect(9)
    with pytest.raises(SettingsError, match="here already"):
        peers.join(1)
    set_gradients(parameters, 0)
    peers.collect(0)
    with pytest.raises(FederationError, match="already"):
        peers.collect(0)
