"""Several processes of one machine share the training of one member, one for each GPU (or, for a test, on the CPU).

Process 0 is the one that Flower started, and the only one that talks to it. It starts the others for one training, and
they end with it. All of them make the same optimizer steps on the same gradients: each computes its part of
the micro-batches of a step, and the sums over all processes are what a single one would have computed, up to rounding.

A process that dies ends the training of this round with an error; the member takes part in the next one again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from distro_fed.errors import TrainingError

if TYPE_CHECKING:
    import torch
    from torch import nn

T = TypeVar("T")

_READY = b"ready\n"
#: until a process is thought to hang in the middle of a step
_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """The processes that train together, as one of them sees it.

    Attributes
    ----------
    rank : int
        0 for the process that talks to Flower.
    size : int
        Number of processes.
    """

    rank: int
    size: int

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """What of the items is for this process."""
        return items[self.rank :: self.size]

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace every gradient by its sum over all processes."""
        import torch

        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters
        ]
        flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
        _all_reduce(flat)
        start = 0
        for parameter, gradient in zip(parameters, gradients, strict=True):
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            parameter.grad, start = gradient, start + gradient.numel()

    def add(self, number: float, like: nn.Parameter) -> float:
        """Sum of a number over all processes, on the device of a parameter."""
        import torch

        total = torch.tensor([number], dtype=torch.float32, device=like.device)
        _all_reduce(total)
        return float(total)


def _all_reduce(tensor: torch.Tensor) -> None:
    from torch import distributed

    try:
        distributed.all_reduce(tensor)
    except RuntimeError as error:
        raise TrainingError("a local process is lost in the middle of training; the log above says why") from error


#: makes everything ready in the process of a rank (1, 2, ...) and returns what trains there
Job = Callable[[int], Callable[[LocalGroup], object]]


@contextmanager
def local_group(size: int, job: Job, backend: str) -> Iterator[LocalGroup]:
    """Start processes 1, 2, ... that run ``job``, and be process 0 while the context is entered.

    Parameters
    ----------
    size : int
        Number of processes, this one included.
    job : Job
        Sent to the others by pickle.
    backend : str
        Of ``torch.distributed``: ``nccl`` or ``gloo``.

    Raises
    ------
    TrainingError
        One of the others ended, or this process has a group already.
    """
    from torch import distributed

    if distributed.is_initialized():
        raise TrainingError(
            "local-processes: this process belongs to a group of torch.distributed already; let one of the two be"
        )
    workers: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="distro-fed-") as folder:
        place = f"file://{folder}/rendezvous"
        try:
            for rank in range(1, size):
                workers.append(_start(job, LocalGroup(rank, size), place, backend))
            for worker in workers:
                if worker.stdout is None or worker.stdout.read(len(_READY)) != _READY:
                    raise TrainingError("a local process ended while it loaded the model; the log above says why")
            distributed.init_process_group(backend, init_method=place, rank=0, world_size=size, timeout=_PATIENCE)
            try:
                yield LocalGroup(0, size)
            finally:
                distributed.destroy_process_group()
        finally:
            for worker in workers:
                worker.kill()  # after the last sum there is nothing left for it to do
                worker.wait()
                if worker.stdout:
                    worker.stdout.close()


def _start(job: Job, group: LocalGroup, place: str, backend: str) -> subprocess.Popen[bytes]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "distro_fed.clients.local_workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if worker.stdin is not None:
        with suppress(BrokenPipeError), worker.stdin as stream:  # one that has ended is found when it should be ready
            stream.write(pickle.dumps((job, group, place, backend)))
    return worker


def work(stream: BinaryIO, ready: BinaryIO) -> None:
    """What the other processes do: read the job, make ready, train.

    Parameters
    ----------
    stream, ready : binary streams
        From and to process 0, which has started this one.
    """
    job, group, place, backend = pickle.loads(stream.read())
    train = job(group.rank)
    ready.write(_READY)
    ready.close()
    from torch import distributed

    distributed.init_process_group(
        backend, init_method=place, rank=group.rank, world_size=group.size, timeout=_PATIENCE
    )
    train(group)
    distributed.destroy_process_group()


if __name__ == "__main__":
    own_output = os.dup(1)
    os.dup2(2, 1)  # whatever libraries print goes to the log, not to process 0
    with os.fdopen(own_output, "wb") as output:
        work(sys.stdin.buffer, output)
