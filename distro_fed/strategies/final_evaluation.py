"""Who measures the final model, and what they found."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flwr.app import Message, RecordDict

from distro_fed.strategies.intake import Refused, parse
from distro_fed.strategies.members import Members
from distro_fed.strategies.metrics import metrics_content
from distro_fed.strategies.run_state import RunState
from distro_fed.strategies.sampling import sample

if TYPE_CHECKING:
    from distro_fed.strategies.distro import DistroStrategy

log = logging.getLogger("flwr")


def evaluators(strategy: DistroStrategy, nodes: Iterable[int], round_: int) -> list[int]:
    """Those of the nodes who are asked; none if there are too few."""
    there, needed = strategy.members.ordered(nodes), strategy.min_evaluate_nodes
    if strategy.fraction_evaluate == 0.0:
        return []
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
