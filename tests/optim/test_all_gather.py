"""Peers as processes over gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distro_fed.errors import PeerLost, PeersDiffer
from distro_fed.optim import AllGather, DistroAdamW, SimulatedPeers
from tests.optim.processes import Processes, die, new_group, options, set_gradients, simulate, weights


def train(port: int, rank: int, world: int, steps: int) -> dict[str, Any]:
    new_group(port, rank, world)
    parameters = weights()
    optimizer = DistroAdamW(parameters, **options(), exchange=AllGather())
    for step in range(steps):
        set_gradients(parameters, step, rank)
        optimizer.step()
    optimizer.check_equal()
    return {
        "digest": optimizer.parameter_digest(),
        "chain": optimizer.chain,
        "bytes": (optimizer.bytes_sent, optimizer.bytes_received),
        "peers": optimizer.peers,
    }


def test_processes_and_simulated_peers_give_equal_bits_and_bytes(processes: Processes) -> None:
    for rank in range(3):
        processes.start(train, rank, rank, 3, 4)
    found = processes.results(3)
    simulated = simulate(4, 3, "all-gather")
    for rank in range(3):
        assert found[rank] == {
            "digest": simulated.optimizer.parameter_digest(),
            "chain": simulated.optimizer.chain,
            "bytes": (simulated.bytes_sent[rank], simulated.bytes_received[rank]),
            "peers": (0, 1, 2),
        }


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    data = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
    return ((model(data) - data) ** 2).mean()  # type: ignore[no-any-return]


def train_ddp(port: int, rank: int, world: int) -> bytes:
    new_group(port, rank, world)
    model = DistributedDataParallel(small_model())
    optimizer = DistroAdamW(model.parameters(), lr=0.01, exchange=AllGather())
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, step, rank).backward()
        optimizer.step()
    return optimizer.parameter_digest()


def test_under_distributed_data_parallel(processes: Processes) -> None:
    for rank in range(2):
        processes.start(train_ddp, rank, rank, 2)
    model = small_model()
    peers = SimulatedPeers(DistroAdamW(model.parameters(), lr=0.01), 2)
    for step in range(3):
        for rank in range(2):
            model.zero_grad()
            loss_of(model, step, rank).backward()
            peers.collect(rank)
        peers.step()
    assert set(processes.results(2).values()) == {peers.optimizer.parameter_digest()}


def drift(port: int, rank: int, world: int) -> bytes:
    new_group(port, rank, world)
    parameters = weights()
    optimizer = DistroAdamW(parameters, **options(), exchange=AllGather())
    set_gradients(parameters, 0, rank)
    optimizer.step()
    optimizer.check_equal()
    if rank == 1:
        parameters[0].detach()[3, 3] += 2**-20
    with pytest.raises(PeersDiffer, match=r"after 1 steps peers \[1\] of \[0, 1, 2\]"):
        optimizer.check_equal()
    optimizer.synchronise()
    optimizer.check_equal()
    return optimizer.parameter_digest()


def test_drift_is_found_at_every_peer_and_can_be_repaired(processes: Processes) -> None:
    for rank in range(3):
        processes.start(drift, rank, rank, 3)
    assert set(processes.results(3).values()) == {simulate(1, 3, "all-gather").optimizer.parameter_digest()}


def lose_a_peer(port: int, rank: int) -> dict[str, Any]:
    """Rank 2 is killed in the third step; a new process takes its place in a second group."""
    parameters = weights()
    optimizer = DistroAdamW(parameters, **options())
    new_group(port, rank, 3)
    optimizer.exchange = AllGather()
    for step in range(2):
        set_gradients(parameters, step, rank)
        optimizer.step()
    if rank == 2:
        die()
    set_gradients(parameters, 2, rank)
    before, chain = optimizer.parameter_digest(), optimizer.chain
    with pytest.raises(PeerLost, match="synchronise"):
        optimizer.step()
    assert (optimizer.parameter_digest(), optimizer.chain, optimizer.steps) == (before, chain, 2)
    dist.destroy_process_group()
    return go_on(port, rank, optimizer)


def join(port: int, rank: int) -> dict[str, Any]:
    return go_on(port, rank, DistroAdamW(weights(seed=5), **options()))


def go_on(port: int, rank: int, optimizer: DistroAdamW) -> dict[str, Any]:
    new_group(port, rank, 3, generation=1)
    optimizer.exchange = AllGather()
    optimizer.synchronise()
    joined_at = optimizer.steps
    for step in range(2, 4):
        set_gradients(optimizer.parameters, step, rank)
        optimizer.step()
    optimizer.check_equal()
    return {"joined": joined_at, "steps": optimizer.steps, "digest": optimizer.parameter_digest()}


def test_a_killed_peer_stops_the_group_and_a_new_group_goes_on(processes: Processes) -> None:
    first = [processes.start(lose_a_peer, rank, rank) for rank in range(3)]
    processes.start(join, "new", 2)
    found = processes.results(3)
    assert sorted(map(str, found)) == ["0", "1", "new"]
    assert {(result["joined"], result["steps"]) for result in found.values()} == {(2, 4)}
    assert len({result["digest"] for result in found.values()}) == 1
    first[2].join(timeout=10)
    assert first[2].exitcode == -9
