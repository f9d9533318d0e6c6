"""What a client does in a round, in words of its own: no Flower and no network here.

``train locally -> pseudo-gradient -> compress -> Update``: :meth:`Participant.train` reads top to bottom.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distro_fed.agreement import Agreement
from distro_fed.clients.replica_store import ReplicaStore
from distro_fed.clients.residual_store import ResidualStore
from distro_fed.clients.task import LocalTask, RoundInfo, TrainResult
from distro_fed.errors import TrainingError, WrongBase, WrongRun
from distro_fed.replica import Replica
from distro_fed.transport.records import Reply, Request, Status
from distro_fed.update import Kind

if TYPE_CHECKING:
    import torch

    from distro_fed.model.trainable import Trainable


@dataclass(frozen=True)
class Participant:
    """One organisation in one run.

    Parameters
    ----------
    task : LocalTask
    trainable : Trainable
        Overwritten with the replica before each use; virtual clients of a process share it.
    agreement : Agreement
    replicas : ReplicaStore
        Shared by the clients of a machine.
    residuals : ResidualStore or None
        This organisation's own; None: no error feedback.
    """

    task: LocalTask
    trainable: Trainable
    agreement: Agreement
    replicas: ReplicaStore
    residuals: ResidualStore | None

    def train(self, request: Request, info: RoundInfo) -> Reply:
        """One round of local training, as one compressed update."""
        started = time.monotonic()
        replica = self._replica(request, info)
        if isinstance(replica, Reply):
            return replica
        self.trainable.write(replica.values)
        metrics = self._evaluate(info) if request.evaluate else {}
        result = self.task.train(self.trainable, self.agreement, info)
        coefficients = self._pseudo_gradient(result, replica, request.round)
        body = self._compress(coefficients, request, info.name)
        update = self.agreement.frame(Kind.CLIENT, request.round, replica.version, replica.chain, body)
        metrics |= {key: float(value) for key, value in result.metrics.items()}
        metrics |= {
            "train-loss": float(result.loss),
            "num-examples": float(result.num_examples),
            "seconds": time.monotonic() - started,
        }
        return Reply(Status.OK, info.name, self.replicas.retained_version, update, metrics, columns=result.columns)

    def evaluate(self, request: Request, info: RoundInfo) -> Reply:
        """Held-out loss of the replica that this member already has."""
        replica = self._replica(request, info)
        if isinstance(replica, Reply):
            return replica
        self.trainable.write(replica.values)
        return Reply(Status.OK, info.name, self.replicas.retained_version, None, self._evaluate(info))

    def _replica(self, request: Request, info: RoundInfo) -> Replica | Reply:
        if request.run != self.agreement.run:
            raise WrongRun("this member's model, tensors or compressors are not those of the server")
        try:
            return self.replicas.bring_to(request)
        except WrongBase:
            return Reply(Status.BEHIND, info.name, self.replicas.start_for(request))

    def _evaluate(self, info: RoundInfo) -> dict[str, float]:
        result = self.task.evaluate(self.trainable, info)
        if result is None:
            return {}
        return {
            "held-out-loss": result.loss,
            "held-out-tokens": result.tokens,
            "held-out-examples": result.num_examples,
        }

    def _pseudo_gradient(self, result: TrainResult, replica: Replica, round_: int) -> torch.Tensor:
        if result.coefficients is not None:
            if tuple(result.coefficients.shape) != (self.agreement.space.numel,):
                raise TrainingError(
                    f"training returned coefficients of shape {tuple(result.coefficients.shape)}; the compressor's "
                    f"space has {self.agreement.space.numel} values"
                )
            return result.coefficients.float()
        delta = self.trainable.delta(replica.values)
        return self.agreement.uplink.analyse(delta, self.agreement.layout, self.agreement.key(round_))

    def _compress(self, coefficients: torch.Tensor, request: Request, name: str) -> bytes:
        agreement = self.agreement
        if self.residuals is not None and (residual := self.residuals.load(request.version, agreement)) is not None:
            coefficients = coefficients.add_(residual.to(coefficients.device))
        seed = _rounding_seed(agreement.seed, request.round, name)
        body = agreement.uplink.encode(coefficients, agreement.space, seed)
        if self.residuals is not None:
            agreement.uplink.decode(body, agreement.space).add_to(coefficients, -1.0)
            self.residuals.save(coefficients, request.version, body)
        return body


def _rounding_seed(seed: int, round_: int, name: str) -> int:
    """Independent stochastic rounding for each member and round, so that rounding errors average out."""
    digest = hashlib.blake2b(f"{seed}\0{round_}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
