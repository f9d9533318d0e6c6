"""A round whose updates are summed under masks: the mean is all that the server learns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flwr.app import Message

from distro_fed.layout import Layout
from distro_fed.secure_aggregation.server_session import SecureSum
from distro_fed.secure_aggregation.update_vector import mean_of_present, mean_of_sum, vector_count
from distro_fed.strategies.intake import Masked, Refused
from distro_fed.strategies.members import Members
from distro_fed.strategies.secure_exchange import read_answer
from distro_fed.strategies.secure_round import SecureRound

if TYPE_CHECKING:
    import torch

    from distro_fed.compression.quantized import Quantized

log = logging.getLogger("flwr")

#: losses behind the codes and scales of an update: training, held-out
LOSSES = 2
#: name under which means over the members are reported
EVERYBODY = "all members"


class SecureTrainingRound:
    """Takes the masked replies of a round one by one; offers what :class:`.training_round.TrainingRound` does.

    Attributes
    ----------
    number : int
    metrics, left_out : dict
        As in ``TrainingRound``; metrics are means over all members.

    Parameters
    ----------
    secure : SecureRound
        Agreed on, its deliveries made.
    space : Layout
        Coefficients of the round.
    code : Quantized
        What codes them.
    members : Members
        Learns which node is who.
    finish : callable
        The exchanges after training; gives the sum, or None.
    """

    def __init__(
        self,
        secure: SecureRound,
        space: Layout,
        code: Quantized,
        members: Members,
        finish: Callable[[], SecureSum | None],
    ) -> None:
        self.number = secure.proposal.round
        self.metrics: dict[str, dict[str, float]] = {}
        self.left_out: dict[str, str] = {}
        self._secure, self._space, self._code, self._members = secure, space, code, members
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
        mean = mean_of_sum(found.sums, sizes, q=self._code.bits, weight=found.weight, metrics=2 * LOSSES)
        losses = dict(zip(("train-loss", "held-out-loss"), mean_of_present(mean.numbers), strict=True))
        self.metrics[EVERYBODY] = {name: loss for name, loss in losses.items() if loss is not None}
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


def update_count(space: Layout, code: Quantized) -> int:
    """Length of the masked vector of an update."""
    return vector_count(space.numel, len(space) + 2 * LOSSES, code.bits)


def evaluation_count(code: Quantized) -> int:
    """Length of the masked vector of an evaluation."""
    return vector_count(0, 2, code.bits)


def mean_evaluation(found: SecureSum, code: Quantized) -> float | None:
    """Mean held-out loss over the members that have one."""
    mean = mean_of_sum(found.sums, [], q=code.bits, weight=found.weight, metrics=2)
    return mean_of_present(mean.numbers)[0]
