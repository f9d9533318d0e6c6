"""What a client does in a round, in words of its own: no Flower and no network here.

``train locally -> pseudo-gradient -> compress -> Update``: :meth:`Participant.train` reads top to bottom.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from distro_fed.agreement import Agreement
from distro_fed.clients.masked_upload import MaskedUpload
from distro_fed.clients.replica_store import ReplicaStore
from distro_fed.clients.residual_store import ResidualStore
from distro_fed.clients.task import LocalTask, RoundInfo, TrainResult
from distro_fed.compression.base import Compressor, Residual, RoundKey
from distro_fed.compression.round_code import Coded, RoundCode, integer_code
from distro_fed.compression.scales import scales_digest
from distro_fed.errors import TrainingError, WrongBase, WrongRun
from distro_fed.replica import Replica
from distro_fed.transport.records import DRIFT, Reply, Request, Status
from distro_fed.update import Kind

if TYPE_CHECKING:
    import torch

    from distro_fed.model.trainable import Trainable

log = logging.getLogger("distro_fed")

OpenUpload = Callable[[], MaskedUpload]


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
        code = self._code(replica, request, self.agreement.uplink)
        metrics, result = self._train(replica, request, info)
        coded = self._compress(result, replica, info, code, _rounding_seed(self.agreement.seed, info.round, info.name))
        update = self.agreement.frame(Kind.CLIENT, request.round, replica.version, replica.chain, coded.sent)
        metrics = {key: float(value) for key, value in result.metrics.items()} | metrics
        if coded.clipped is not None:
            metrics["clipped"] = coded.clipped
        metrics |= {
            "train-loss": float(result.loss),
            "num-examples": float(result.num_examples),
            "seconds": time.monotonic() - started,
        }
        return Reply(
            Status.OK, info.name, self.replicas.retained_version, update, metrics, columns=result.columns,
            scales=scales_digest(code.scales),
        )  # fmt: skip

    def train_masked(self, request: Request, info: RoundInfo, open_: OpenUpload) -> tuple[Reply, bytes]:
        """One round of local training, as one masked vector; nothing about this member alone is in clear.

        ``open_`` is called when it is known that this member can train.
        """
        replica = self._replica(request, info)
        if isinstance(replica, Reply):
            return replica, b""
        code = self._code(replica, request, integer_code(self.agreement.uplink))
        upload = open_()
        metrics, result = self._train(replica, request, info)
        coded = self._compress(result, replica, info, code, upload.rounding_seed)
        numbers = [float(result.loss), metrics.get("held-out-loss"), coded.clipped]
        space = self.agreement.space(replica.key(info.round))
        masked = upload.send_update(coded.sent, space, numbers, replica, result.num_examples)
        return Reply(Status.OK, info.name, self.replicas.retained_version), masked

    def evaluate_masked(self, request: Request, info: RoundInfo, open_: OpenUpload) -> tuple[Reply, bytes]:
        """Held-out loss of the replica, under masks."""
        replica = self._replica(request, info)
        if isinstance(replica, Reply):
            return replica, b""
        upload = open_()
        self._load(replica)
        masked = upload.send_losses([self._evaluate_or_not(info).get("held-out-loss")], replica)
        return Reply(Status.OK, info.name, self.replicas.retained_version), masked

    def evaluate(self, request: Request, info: RoundInfo) -> Reply:
        """Held-out loss of the replica that this member already has."""
        replica = self._replica(request, info)
        if isinstance(replica, Reply):
            return replica
        self._load(replica)
        return Reply(Status.OK, info.name, self.replicas.retained_version, None, self._evaluate(info))

    def _train(self, replica: Replica, request: Request, info: RoundInfo) -> tuple[dict[str, float], TrainResult]:
        """Evaluate if that is asked for, then train in place."""
        self._load(replica)
        metrics = self._evaluate_or_not(info) if request.evaluate else {}
        with self.trainable.only({spec.name for spec in self.agreement.trained(replica.version)}):
            return metrics, self.task.train(self.trainable, self.agreement, replace(info, memory=replica.memory))

    def _replica(self, request: Request, info: RoundInfo) -> Replica | Reply:
        if request.run != self.agreement.run:
            raise WrongRun("this member's model, tensors or compressors are not those of the server")
        try:
            return self.replicas.bring_to(request)
        except WrongBase:
            code = DRIFT if self.replicas.differs_from(request) else ""
            return Reply(Status.BEHIND, info.name, self.replicas.start_for(request), code=code)

    def _code(self, replica: Replica, request: Request, compressor: Compressor) -> RoundCode:
        """How this round's update is coded; made before training, which scales that cannot be used are not worth."""
        return RoundCode(compressor, self.agreement.space(replica.key(request.round)), request.scales)

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

    def _compress(self, result: TrainResult, replica: Replica, info: RoundInfo, code: RoundCode, seed: int) -> Coded:
        """Code the update of this round; what it leaves unsent is kept for the next one."""
        agreement, key = self.agreement, replica.key(info.round)
        if self.residuals is not None and agreement.residual is Residual.IN_TENSORS:
            delta = self._delta(result, replica, key)
            self._add_residual(delta, replica, info, code)
            coefficients = agreement.analyse(delta, key)
            coded = code.encode(coefficients, seed)
            code.decode(coded).add_to(coefficients.zero_(), -1.0)
            agreement.synthesise(coefficients, delta, key)
            self._keep_residual(delta, replica, info.round, coded.meant)
            return coded
        coefficients = self._coefficients(result, replica, key)
        self._add_residual(coefficients, replica, info, code)
        coded = code.encode(coefficients, seed)
        if self.residuals is not None:
            code.decode(coded).add_to(coefficients, -1.0)
            self._keep_residual(coefficients, replica, info.round, coded.meant)
        return coded

    def _add_residual(self, vector: torch.Tensor, replica: Replica, info: RoundInfo, code: RoundCode) -> None:
        if self.residuals is None:
            return
        if (residual := self.residuals.load(replica, info.round, code.compressor)) is not None:
            vector.add_(residual.to(vector.device), alpha=info.settings.compression.error_feedback_decay)

    def _keep_residual(self, unsent: torch.Tensor, replica: Replica, round_: int, body: bytes) -> None:
        if self.residuals is not None:
            try:
                self.residuals.save(unsent, replica.version, round_, body)
            except OSError as error:
                log.warning("the residual cannot be kept (%s); training goes on without it", error)

    def _coefficients(self, result: TrainResult, replica: Replica, key: RoundKey) -> torch.Tensor:
        if result.coefficients is None:
            return self.agreement.analyse(self._pseudo_gradient(replica), key)
        expected = self.agreement.space(key).numel
        if tuple(result.coefficients.shape) != (expected,):
            raise TrainingError(
                f"training returned coefficients of shape {tuple(result.coefficients.shape)}; the compressor's "
                f"space has {expected} values in this round"
            )
        return result.coefficients.float()

    def _delta(self, result: TrainResult, replica: Replica, key: RoundKey) -> torch.Tensor:
        if result.coefficients is None:
            return self._pseudo_gradient(replica)
        coefficients = self._coefficients(result, replica, key)
        delta = coefficients.new_zeros(self.agreement.layout.numel)
        self.agreement.synthesise(coefficients, delta, key)
        return delta

    def _pseudo_gradient(self, replica: Replica) -> torch.Tensor:
        held = {id(parameter) for parameter in self.trainable.model.parameters()}
        lost = [name for name, parameter in self.trainable.parameters.items() if id(parameter) not in held]
        if lost:
            raise TrainingError(
                f"training replaced the parameter object {lost[0]!r}; change parameters in place, since what "
                "is sent is the change of the objects that were there"
            )
        return self.trainable.delta(replica.values)


def _rounding_seed(seed: int, round_: int, name: str) -> int:
    """Independent stochastic rounding for each member and round, so that rounding errors average out."""
    digest = hashlib.blake2b(f"{seed}\0{round_}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
