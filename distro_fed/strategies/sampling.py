"""Who takes part in a round."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Sequence

from flwr.serverapp import Grid

from distro_fed.errors import NotEnoughNodes


def wait_for_nodes(grid: Grid, needed: int, timeout: float, poll_interval: float = 0.5) -> list[int]:
    """Ids of all nodes, once at least ``needed`` are there.

    Raises
    ------
    NotEnoughNodes
        After ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= needed:
            return nodes
        if time.monotonic() >= deadline:
            raise NotEnoughNodes(
                f"{len(nodes)} of the {needed} nodes needed were there after {timeout:g} s; start more SuperNodes, "
                "wait longer (start-timeout), or ask for fewer (min-available-nodes, min-train-nodes)"
            )
        time.sleep(min(poll_interval, max(0.0, deadline - time.monotonic())))


def sample(nodes: Sequence[int], fraction: float, minimum: int, seed: int, round_: int) -> list[int]:
    """A subset of ``nodes`` that depends on nothing but their order, the seed and the round."""
    return _draw(nodes, _size(nodes, fraction, minimum), seed, round_)


def sample_free(
    nodes: Sequence[int],
    busy: Collection[int],
    fraction: float,
    minimum: int,
    quorum: float,
    seed: int,
    round_: int,
) -> tuple[list[int], int]:
    """As :func:`sample`, without nodes that are busy, unless too few others are left for the round to count.

    Returns
    -------
    tuple of list of int and int
        The subset, and how many nodes it is short of because others are busy.
    """
    size = _size(nodes, fraction, minimum)
    free = [node_id for node_id in nodes if node_id not in busy]
    if len(free) < min(size, max(minimum, needed_replies(quorum, size))):
        free = list(nodes)
    cohort = _draw(free, min(size, len(free)), seed, round_)
    return cohort, size - len(cohort)


def needed_replies(quorum: float, nodes: int) -> int:
    """How many of so many nodes have to answer."""
    return max(1, math.ceil(quorum * nodes - 1e-9))  # 0.55 * 100 is a little above 55


def _size(nodes: Sequence[int], fraction: float, minimum: int) -> int:
    return min(len(nodes), max(minimum, math.floor(len(nodes) * fraction)))


def _draw(nodes: Sequence[int], size: int, seed: int, round_: int) -> list[int]:
    if size == len(nodes):
        return list(nodes)
    return random.Random(f"{seed}:{round_}").sample(list(nodes), size)
