"""What a client does in a round, in words of its own: no Flower and no network here.

``train locally -> pseudo-gradient -> compress -> Update``: :meth:`Participant.train` reads top to bottom.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
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

log = logging.getLogger("distro_fed")


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
    buffers : mapping of str to torch.Tensor
        The model's buffers as they were loaded; restored before each use.
    """

    task: LocalTask
    trainable: Trainable
    agreement: Agreement
    replicas: ReplicaStore
    residuals: ResidualStore | None
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def train(self, request: Request, info: RoundInfo) -> Reply:
        """One round of local training, as one compressed update."""
        started = time.monotonic()
        replica = self._replica(request, info)
        if isinstance(replica, Reply):
            return replica
        self._load(replica)
        metrics = self._evaluate_or_not(info) if request.evaluate else {}
        result = self.task.train(self.trainable, self.agreement, info)
        coefficients = self._pseudo_gradient(result, replica, request.round)
        body = self._compress(coefficients, request, info.name)
        update = self.agreement.frame(Kind.CLIENT, request.round, replica.version, replica.chain, body)
        metrics = {key: float(value) for key, value in result.metrics.items()} | metrics
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
        self._load(replica)
        return Reply(Status.OK, info.name, self.replicas.retained_version, None, self._evaluate(info))

    def _replica(self, request: Request, info: RoundInfo) -> Replica | Reply:
        if request.run != self.agreement.run:
            raise WrongRun("this member's model, tensors or compressors are not those of the server")
        try:
            return self.replicas.bring_to(request)
        except WrongBase:
            return Reply(Status.BEHIND, info.name, self.replicas.start_for(request))

    def _load(self, replica: Replica) -> None:
        """Put the model into the state of the replica; nothing of what another member did stays."""
        self.trainable.write(replica.values)
        for name, buffer in self.trainable.model.named_buffers():
            if name in self.buffers:
                buffer.copy_(self.buffers[name])

    def _evaluate_or_not(self, info: RoundInfo) -> dict[str, float]:
        """Held-out loss before training; a member whose evaluation fails can still train."""
        try:
            return self._evaluate(info)
        except Exception:
            log.exception("%s cannot evaluate and trains without", info.name)
            return {}

    def _evaluate(self, info: RoundInfo) -> dict[str, float]:
        result = self.task.evaluate(self.trainable, info)
        if result is None:
            return {}
        return {
            "held-out-loss": float(result.loss),
            "held-out-tokens": float(result.tokens),
            "held-out-examples": float(result.num_examples),
        }

    def _pseudo_gradient(self, result: TrainResult, replica: Replica, round_: int) -> torch.Tensor:
        if result.coefficients is not None:
            if tuple(result.coefficients.shape) != (self.agreement.space.numel,):
                raise TrainingError(
                    f"training returned coefficients of shape {tuple(result.coefficients.shape)}; the compressor's "
                    f"space has {self.agreement.space.numel} values"
                )
            return result.coefficients.float()
        held = {id(parameter) for parameter in self.trainable.model.parameters()}
        lost = [name for name, parameter in self.trainable.parameters.items() if id(parameter) not in held]
        if lost:
            raise TrainingError(
                f"training replaced the parameter object {lost[0]!r}; change parameters in place, since what "
                "is sent is the change of the objects that were there"
            )
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
            try:
                self.residuals.save(coefficients, request.version, body)
            except OSError as error:
                log.warning("the residual cannot be kept (%s); training goes on without it", error)
        return body


def _rounding_seed(seed: int, round_: int, name: str) -> int:
    """Independent stochastic rounding for each member and round, so that rounding errors average out."""
    digest = hashlib.blake2b(f"{seed}\0{round_}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
