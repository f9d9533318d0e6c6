"""A round whose updates are summed under masks: the mean is all that the server learns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Message

from distro_fed.compression.scales import unpack_scales
from distro_fed.errors import EncodingError
from distro_fed.layout import Layout
from distro_fed.secure_aggregation.server_session import SecureSum
from distro_fed.secure_aggregation.update_vector import METRICS, mean_of_present, mean_of_sum, vector_count
from distro_fed.secure_aggregation.weighting import Weighting
from distro_fed.strategies.intake import Masked, Refused
from distro_fed.strategies.members import Members
from distro_fed.strategies.secure_exchange import read_answer
from distro_fed.strategies.secure_round import SecureRound

if TYPE_CHECKING:
    import torch

log = logging.getLogger("flwr")

#: name under which means over the members are reported
EVERYBODY = "all members"


class SecureTrainingRound:
    """Takes the masked replies of a round one by one; offers what :class:`.training_round.TrainingRound` does.

    Attributes
    ----------
    number : int
    metrics, left_out : dict
        As in ``TrainingRound``; metrics are means over all members.
    measured : list of float
        As in ``TrainingRound``.

    Parameters
    ----------
    secure : SecureRound
        Agreed on, its deliveries made.
    space : Layout
        Coefficients of the round.
    members : Members
        Learns which node is who.
    finish : callable
        The exchanges after training; gives the sum, or None.
    scales : bytes
        Those that all members code with; empty: each takes its own.
    """

    def __init__(
        self,
        secure: SecureRound,
        space: Layout,
        members: Members,
        finish: Callable[[], SecureSum | None],
        scales: bytes = b"",
    ) -> None:
        self.number = secure.proposal.round
        self.metrics: dict[str, dict[str, float]] = {}
        self.left_out: dict[str, str] = {}
        self.measured: list[float] = []
        self._common = unpack_scales(np.frombuffer(scales, np.uint8), len(space)).tolist() if scales else None
        self._secure, self._space, self._members = secure, space, members
        self._finish = finish

    def take(self, node_id: int, message: Message) -> tuple[str, Masked | Refused]:
        """Check a reply and add its masked vector; returns the member's name and what became of it."""
        outcome = take_masked(self._secure, node_id, message)
        name = self._members.name(node_id)
        if isinstance(outcome, Refused):
            self.left_out[name] = outcome.reason
            log.warning("round %d: the reply of %s is left out: %s", self.number, name, outcome.reason)
        return name, outcome

    def close(self) -> torch.Tensor | None:
        """Mean in coefficient space, ``(space.numel,)``; None if there is no sum."""
        import torch

        found = self._finish()
        for node_id, reason in self._secure.left_out.items():
            self.left_out.setdefault(self._members.name(node_id), reason)
        if found is None:
            log.warning("round %d is skipped: %s", self.number, self._secure.aborted)
            return None
        sizes = [spec.numel for spec in self._space]
        proposal = self._secure.proposal
        try:
            mean = mean_of_sum(
                found.sums, sizes, q=proposal.bits, weight=found.weight, metrics=2 * len(METRICS), common=self._common,
                masked=proposal.weighting == Weighting.MASKED,
            )  # fmt: skip
        except EncodingError as error:
            log.warning("round %d is skipped: %s", self.number, error)
            return None
        self.measured = mean.scales
        metrics = dict(zip(METRICS, mean_of_present(mean.numbers), strict=True))
        self.metrics[EVERYBODY] = {name: value for name, value in metrics.items() if value is not None}
        self.metrics[EVERYBODY]["members"] = float(len(found.survivors))
        return torch.from_numpy(mean.coefficients)


def take_masked(secure: SecureRound, node_id: int, message: Message) -> Masked | Refused:
    """Hand the masked vector in a reply to the round."""
    masked = read_answer(message)
    if isinstance(masked, Refused):
        return masked
    if not secure.take(node_id, masked[0]):
        return Refused(secure.left_out.get(node_id, secure.aborted))
    return Masked(None)


def update_count(space: Layout, bits: int, weighting: int) -> int:
    """Length of the masked vector of an update, of so many bits a value."""
    return vector_count(space.numel, len(space) + 2 * len(METRICS) + (weighting == Weighting.MASKED), bits)


def evaluation_count(bits: int) -> int:
    """Length of the masked vector of an evaluation."""
    return vector_count(0, 2, bits)


def mean_evaluation(found: SecureSum, bits: int) -> float | None:
    """Mean held-out loss over the members that have one."""
    mean = mean_of_sum(found.sums, [], q=bits, weight=found.weight, metrics=2)
    return mean_of_present(mean.numbers)[0]
