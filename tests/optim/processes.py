"""Real processes as peers. They start from a fork server that has imported torch already."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo  # which making any optimizer imports: once in the fork server, not in every process
import torch.distributed as dist
from torch import nn

from distro_fed.optim import DistroAdamW, SimulatedPeers

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch._dynamo", "tests.optim.processes"])
#: seconds until a test gives up; far above what is needed, for a busy machine
PATIENCE = 120


def weights(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((128, 64), (70,))]


def set_gradients(parameters: Sequence[nn.Parameter], step: int, peer: int) -> None:
    generator = torch.Generator().manual_seed(1000 * step + peer)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def options() -> dict[str, Any]:
    return {"lr": 0.01, "k": 2, "weight_decay": 0.1}


def simulate(steps: int, count: int, topology: str) -> SimulatedPeers:
    parameters = weights()
    peers = SimulatedPeers(DistroAdamW(parameters, **options()), count, topology)  # type: ignore[arg-type]
    for step in range(steps):
        for peer in peers.peers:
            set_gradients(parameters, step, peer)
            peers.collect(peer)
        peers.step()
    return peers


def die() -> None:
    """As a process dies that is out of memory or power."""
    os.kill(os.getpid(), signal.SIGKILL)


def connect(port: int) -> dist.TCPStore:
    return dist.TCPStore(
        "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE)
    )


def new_group(port: int, rank: int, world: int, generation: int = 0) -> None:
    store = dist.PrefixStore(f"generation-{generation}", connect(port))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=PATIENCE))


class Processes:
    """Runs ``target(report, port, *arguments)`` in processes that share a store; they end with the test."""

    def __init__(self) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._results: multiprocessing.Queue[tuple[Any, Any]] = _CONTEXT.Queue()
        self._running: list[Any] = []

    def start(self, target: Callable[..., Any], name: Any, *arguments: Any) -> Any:
        process = _CONTEXT.Process(
            target=_run, args=(target, name, self._results, self._store.port, arguments), daemon=True
        )
        process.start()
        self._running.append(process)
        return process

    def results(self, count: int) -> dict[Any, Any]:
        """What the next ``count`` processes returned, by name."""
        found = {}
        for _ in range(count):
            try:
                name, (result, error) = self._results.get(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError(f"no answer within {PATIENCE} s; here are {sorted(found)}") from None
            assert error is None, f"{name}: {error}"
            found[name] = result
        return found

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.join()


def _run(target: Callable[..., Any], name: Any, results: Any, port: int, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        results.put((name, (target(port, *arguments), None)))
    except BaseException:
        results.put((name, (None, traceback.format_exc())))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
