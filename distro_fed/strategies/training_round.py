"""One round: replies in, one mean out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Message

from distro_fed.compression.scales import SCALE_BYTES, fill_scales, scales_digest, unpack_scales, with_scales
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
    scales : bytes
        Those that all members code with; empty: each takes its own.

    Attributes
    ----------
    metrics, left_out : dict
        By name: what a member reports, and why it is left out.
    measured : list of float
        After :meth:`close`: mean of the scales that members measured, one for each tensor, weighted as the updates are;
        empty for a compressor without scales, or with more than one for each tensor.
    """

    number: int
    cohort: Sequence[int]
    replica: Replica
    members: Members
    weighted_by: str | None
    quorum: float
    aggregation: str = "mean"
    busy: int = 0
    scales: bytes = b""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import torch

        space = self.replica.agreement.space(self.replica.key(self.number))
        self._tensors = len(space) if self.replica.agreement.uplink.scaled else 0
        self._measured: dict[str, tuple[bytes, float]] = {}
        self.measured: list[float] = []
        accumulator = torch.zeros(space.numel)
        names = {node_id: self.members.names.get(node_id) for node_id in self.cohort}
        self._sum = OrderedSum(self.replica.agreement, accumulator, names, aggregation=self.aggregation)
        self._open = set(self.cohort)

    def take(self, node_id: int, message: Message) -> tuple[str, Accepted | Refused]:
        """Check a reply and add its update; returns the member's name and what became of it."""
        if node_id not in self._open:
            return self.members.name(node_id), Refused("it was not asked, or has answered already")
        self._open.discard(node_id)
        outcome = examine(message, self.replica, self.number, self.weighted_by, scales_digest(self.scales))
        if outcome.reply is not None:
            self.members.learn_name(node_id, outcome.reply.name)
        name = self.members.name(node_id)
        if isinstance(outcome, Accepted):
            outcome = self._with_common_scales(name, outcome)
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
        self.measured = self._mean_of_measured()
        return self._sum.mean()

    def _with_common_scales(self, name: str, accepted: Accepted) -> Accepted:
        """Note the scales that a member measured, and let its codes stand for the common ones."""
        body = accepted.update.body
        measured = bytes(body[: SCALE_BYTES * self._tensors])
        self._measured[name] = measured, accepted.weight
        if not self.scales:
            return accepted
        update = replace(accepted.update, body=with_scales(body, fill_scales(self.scales, measured)))
        return replace(accepted, update=update, decoded=self.replica.agreement.decode(update))

    def _mean_of_measured(self) -> list[float]:
        total = np.zeros(self._tensors)
        for _, (packed, weight) in sorted(self._measured.items()):
            total += weight * unpack_scales(np.frombuffer(packed, np.uint8), self._tensors).astype(np.float64)
        mean: list[float] = (total / sum(weight for _, weight in self._measured.values())).tolist()
        return mean

    def _leave_out(self, node_id: int, reason: str) -> None:
        name = self.members.name(node_id)
        log.warning("round %d: the reply of %s is left out: %s", self.number, name, reason)
        self.left_out[name] = reason
        self._sum.settle(node_id, self.members.names.get(node_id), None, None, 0.0)
