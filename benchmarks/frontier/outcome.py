"""What one run gives, whatever drove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes
    ----------
    losses : mapping of str to float
        Held-out loss of the final model for every organisation, nats a token.
    bytes_up, bytes_down : float
        Of one client over the whole run (mean over clients), as serialised messages.
    parameters : int
        Of the base model; the references count with it.
    rounds : int
        Exchanges of the run.
    loss_curve : sequence of float
        Mean training loss of every round.
    """

    losses: Mapping[str, float]
    bytes_up: float
    bytes_down: float
    parameters: int
    rounds: int
    loss_curve: tuple[float, ...] = ()

    @property
    def loss(self) -> float:
        """Mean over the organisations."""
        return sum(self.losses.values()) / len(self.losses)
