"""One round: replies in, one mean out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import Message

from distro_fed.replica import Replica
from distro_fed.strategies.intake import Accepted, Refused, examine
from distro_fed.strategies.members import Members
from distro_fed.strategies.ordered_sum import OrderedSum
from distro_fed.strategies.sampling import needed_replies

if TYPE_CHECKING:
    import torch

log = logging.getLogger("flwr")


@dataclass
class TrainingRound:
    """Takes the replies of a cohort one by one.

    Parameters
    ----------
    number : int
        1 for the first round.
    cohort : sequence of int
        Nodes that were asked.
    replica : Replica
        Version that the updates are made on top of; read only.
    members : Members
        Names order the sum.
    weighted_by : str or None
        Metric that weighs an update.
    quorum : float
        Share of the cohort, and of those that would be in it if they were not busy, whose updates are needed.
    aggregation : str
        ``"mean"`` or ``"contributors"``, as in :class:`~distro_fed.strategies.ordered_sum.OrderedSum`.
    busy : int
        How many nodes would have been asked besides if they were not busy with an older request.
    """

    number: int
    cohort: Sequence[int]
    replica: Replica
    members: Members
    weighted_by: str | None
    quorum: float
    aggregation: str = "mean"
    busy: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import torch

        space = self.replica.agreement.space(self.replica.key(self.number))
        accumulator = torch.zeros(space.numel)
        names = {node_id: self.members.names.get(node_id) for node_id in self.cohort}
        self._sum = OrderedSum(self.replica.agreement, accumulator, names, aggregation=self.aggregation)
        self._open = set(self.cohort)

    def take(self, node_id: int, message: Message) -> tuple[str, Accepted | Refused]:
        """Check a reply and add its update; returns the member's name and what became of it."""
        if node_id not in self._open:
            return self.members.name(node_id), Refused("it was not asked, or has answered already")
        self._open.discard(node_id)
        outcome = examine(message, self.replica, self.number, self.weighted_by)
        if outcome.reply is not None:
            self.members.learn_name(node_id, outcome.reply.name)
        name = self.members.name(node_id)
        if isinstance(outcome, Accepted):
            self._sum.settle(node_id, name, outcome.update, outcome.decoded, outcome.weight)
            self.metrics[name] = outcome.reply.metrics
            for key in ("num-examples", "held-out-examples"):
                if key in outcome.reply.metrics:
                    self.members.data_shapes.setdefault(name, {})[key] = outcome.reply.metrics[key]
            self.members.columns[name] = outcome.reply.columns
        else:
            self._leave_out(node_id, outcome.reason)
        return name, outcome

    def close(self) -> torch.Tensor | None:
        """Weighted mean in coefficient space, ``(space.numel,)``; None below the quorum."""
        for node_id in sorted(self._open):
            self._leave_out(node_id, "no answer in time")
        self._sum.close()
        needed = needed_replies(self.quorum, len(self.cohort) + self.busy)
        if len(self.metrics) < needed:
            log.warning(
                "round %d is skipped: %d valid replies of %d nodes (%d more are busy), quorum %d",
                self.number, len(self.metrics), len(self.cohort), self.busy, needed,
            )  # fmt: skip
            return None
        return self._sum.mean()

    def _leave_out(self, node_id: int, reason: str) -> None:
        name = self.members.name(node_id)
        log.warning("round %d: the reply of %s is left out: %s", self.number, name, reason)
        self.left_out[name] = reason
        self._sum.settle(node_id, self.members.names.get(node_id), None, None, 0.0)
