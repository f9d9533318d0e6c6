"""Who takes part in a round."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

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
    size = min(len(nodes), max(minimum, math.floor(len(nodes) * fraction)))
    if size == len(nodes):
        return list(nodes)
    return random.Random(f"{seed}:{round_}").sample(list(nodes), size)
