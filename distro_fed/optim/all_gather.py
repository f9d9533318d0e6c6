"""Peer to peer: every peer sends its frame to all others, over a process group of torch.distributed."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from distro_fed.errors import PeerLost
from distro_fed.optim.exchange import Answer, Exchange, PeerState

# tells the others how long a frame is
_LENGTH_BYTES = 8
_STATE_HEAD = struct.Struct("<Q16s")


class AllGather(Exchange):
    """All-gather over a process group: gloo on the CPU, nccl between GPUs.

    A process group lives and dies as a whole: if one peer dies, every call at the others raises
    :class:`~distro_fed.errors.PeerLost`, at once or after the group's timeout. The way out is a new group without it;
    see ``docs/optimizer.md``. For peers that come and go use the aggregator.

    Parameters
    ----------
    group : ProcessGroup, optional
        By default the main group. All of its ranks are peers; ids are ranks in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.peer = dist.get_rank(group)
        self._world = dist.get_world_size(group)
        on_gpu = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def exchange(self, frame: bytes, steps: int) -> Answer:
        """All frames, in the order of ranks; frames travel padded to the longest."""
        del steps
        frames = dict(enumerate(self._all_gather(frame)))
        each_way = all_gather_bytes(frames)
        return Answer(frames, None, each_way, each_way)

    def gather(self, payload: bytes, steps: int, peers: Sequence[int]) -> dict[int, bytes]:
        """Payload of every rank; all of them take part, whatever ``peers`` says."""
        del steps, peers
        return dict(enumerate(self._all_gather(payload)))

    def synchronise(self, state: PeerState) -> PeerState:
        """Broadcast the state of the lowest rank among those that have applied most steps; all ranks call this."""
        heads = [_STATE_HEAD.unpack(head) for head in self._all_gather(_STATE_HEAD.pack(state.steps, state.chain))]
        source = max(range(self._world), key=lambda rank: (heads[rank][0], -rank))
        root = source if self._group is None else dist.get_global_rank(self._group, source)
        with _lost_peers_by_name():
            for value in state.values:
                buffer = value.detach().to(self._device).contiguous()
                dist.broadcast(buffer, root, self._group)
                if self.peer != source:
                    value.detach().copy_(buffer)
        steps, chain = heads[source]
        return PeerState(steps, chain, state.values)

    def _all_gather(self, payload: bytes) -> list[bytes]:
        with _lost_peers_by_name():
            length = torch.tensor([len(payload)], dtype=torch.int64, device=self._device)
            lengths = [torch.empty_like(length) for _ in range(self._world)]
            dist.all_gather(lengths, length, self._group)
            sizes = [int(size) for size in lengths]
            padded = torch.zeros(max(sizes), dtype=torch.uint8)
            padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
            padded = padded.to(self._device)
            parts = [torch.empty_like(padded) for _ in range(self._world)]
            dist.all_gather(parts, padded, self._group)
            return [part[:size].cpu().numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]


def all_gather_bytes(frames: Mapping[int, bytes]) -> int:
    """Bytes that every peer sends, and receives, when each frame goes to all others: padded to the longest."""
    return (len(frames) - 1) * (_LENGTH_BYTES + max(map(len, frames.values())))


@contextmanager
def _lost_peers_by_name() -> Iterator[None]:
    """Backends report a dead peer as RuntimeError or one of its subclasses."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(
            f"the process group failed ({error}); a peer died or could not be reached. Nothing was applied: make a new "
            "group of those that are left, set optimizer.exchange to it and call optimizer.synchronise()"
        ) from error
