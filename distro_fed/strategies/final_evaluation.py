"""Who measures the final model, and what they found."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from distro_fed.strategies.intake import Refused, parse
from distro_fed.strategies.members import Members
from distro_fed.strategies.metrics import metrics_content
from distro_fed.strategies.run_state import RunState
from distro_fed.strategies.sampling import sample

if TYPE_CHECKING:
    from distro_fed.strategies.distro import DistroStrategy

log = logging.getLogger("flwr")


def evaluators(strategy: DistroStrategy, grid: Grid, round_: int) -> list[int]:
    """Nodes who are asked; none if there are too few.

    One that is busy with an older request is not, unless too few others are there: a run would wait at its end once
    more for a node that it has waited for in vain.
    """
    if strategy.fraction_evaluate == 0.0:
        return []
    needed, nodes, stragglers = strategy.min_evaluate_nodes, list(grid.get_node_ids()), strategy.courier.stragglers
    strategy.courier.take_late(grid)
    free = [node_id for node_id in nodes if node_id not in stragglers.busy()]
    there = strategy.members.ordered(free if len(free) >= needed else nodes)
    if len(there) < needed:
        log.warning("no evaluation: %d nodes, min_evaluate_nodes = %d", len(there), needed)
        return []
    return sample(there, strategy.fraction_evaluate, needed, strategy.seed, round_)


def take_evaluations(round_: int, replies: Iterable[Message], state: RunState, members: Members) -> list[RecordDict]:
    """Metrics of those who evaluated the model after ``round_`` rounds, by name; others are left out with a warning."""
    metrics: dict[str, dict[str, float]] = {}
    for message in replies:
        reply = parse(message)
        name = members.name(state.courier.node_of(message))
        if isinstance(reply, Refused):
            log.warning("evaluation after round %d: %s is left out: %s", round_, name, reply.reason)
            continue
        metrics[name] = reply.metrics
        if "held-out-loss" in reply.metrics:
            state.progress.evaluation(round_, name, reply.metrics["held-out-loss"])
    return [metrics_content(metrics[name]) for name in sorted(metrics)]
