"""What becomes of a change that a compressor does not send at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from distro_fed.agreement import Agreement
from distro_fed.clients import EvaluateResult, RoundInfo, TrainResult
from distro_fed.clients.participant import Participant
from distro_fed.clients.replica_store import ReplicaStore
from distro_fed.clients.residual_store import ResidualStore
from distro_fed.compression.base import Compressor
from distro_fed.compression.lowrank import LowRank
from distro_fed.compression.quantized import Quantized
from distro_fed.compression.topk import TopK
from distro_fed.errors import TrainingError
from distro_fed.model.trainable import Trainable
from distro_fed.replica import Replica
from distro_fed.settings import RunSettings
from distro_fed.transport.records import Request
from distro_fed.update import Kind, Update
from tests.federation import make_model, run


def steady_train(model: nn.Module, info: RoundInfo) -> TrainResult:
    """The same change of every weight in every round."""
    for parameter in model.parameters():
        generator = torch.Generator().manual_seed(parameter.numel())
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return TrainResult(1, 1.0)


@pytest.mark.parametrize("decay", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("value_bits", [1, 2])
def test_the_residual_is_decayed_and_holds_what_was_not_sent(tmp_path: Path, decay: float, value_bits: int) -> None:
    """``e <- decay e + delta; send Q(top-k of e); e <- e - what was sent``, in plain words."""
    coder = TopK(0.2, value_bits=value_bits)
    server, _ = run(
        rounds=5, nodes=1, train=steady_train, compressor=coder, state_dir=str(tmp_path),
        run_config={"error-feedback": True, "error-feedback-decay": decay, "value-bits": value_bits},
    )  # fmt: skip
    start = make_model()
    values, moved = start.read(), start.read()
    steady_train(start.model, None)  # type: ignore[arg-type]
    delta = start.read() - values
    residual = torch.zeros_like(delta)
    for _ in range(5):
        residual = decay * residual + delta
        sent = torch.zeros_like(delta)
        coder.decode(coder.encode(residual, start.layout, 0), start.layout).add_to(sent)
        residual -= sent
        moved += sent
    torch.testing.assert_close(server.replica.values, moved, rtol=0, atol=1e-6)


class Shift:
    """Moves the weights by a random amount of the round, or hands over the coefficients of that."""

    def __init__(self, as_coefficients: bool = False) -> None:
        self.as_coefficients = as_coefficients
        self.delta = torch.empty(0)

    def load(self, settings: RunSettings) -> tuple[Trainable, str]:
        del settings
        return make_model(), ""

    def name(self, node_config: Mapping[str, object], settings: RunSettings) -> str:
        del node_config, settings
        return "me"

    def evaluate(self, trainable: Trainable, info: RoundInfo) -> EvaluateResult | None:
        del trainable, info
        return None

    def train(self, trainable: Trainable, agreement: Agreement, info: RoundInfo) -> TrainResult:
        before = trainable.read()
        self.delta = 0.01 * torch.randn(before.shape, generator=torch.Generator().manual_seed(info.round))
        if self.as_coefficients:
            return TrainResult(1, 1.0, coefficients=torch.zeros(3))
        trainable.write(before + self.delta)
        return TrainResult(1, 1.0)


class Member:
    """One participant, and a server that applies what it sends as it is."""

    def __init__(self, coder: Compressor, folder: Path, task: Shift | None = None) -> None:
        trainable = make_model()
        self.agreement = Agreement(trainable.layout, coder, coder)
        self.replica = Replica.initial(self.agreement, trainable.read())
        self.task = task or Shift()
        self.residuals = ResidualStore(folder / "residual")
        store = ReplicaStore(Replica.initial(self.agreement, trainable.read()), None)
        self.participant = Participant(self.task, trainable, self.agreement, store, self.residuals)
        self.frames: list[Update] = []

    def round(self, number: int, *, skipped: bool = False) -> torch.Tensor:
        """Train once; returns what the update stands for."""
        replica = self.replica
        request = Request(number, 9, replica.version, replica.chain, self.agreement.run, frames=tuple(self.frames[-1:]))
        settings = RunSettings.from_run_config({})
        reply = self.participant.train(request, RoundInfo(number, 9, "me", settings, version=replica.version))
        assert reply.update is not None
        key = replica.key(number)
        sent = torch.zeros(self.agreement.layout.numel)
        coefficients = torch.zeros(self.agreement.space(key).numel)
        self.agreement.decode(reply.update).add_to(coefficients)
        self.agreement.synthesise(coefficients, sent, key)
        if not skipped:
            body = bytes(reply.update.body)
            self.frames.append(self.agreement.frame(Kind.AGGREGATE, number, replica.version, replica.chain, body))
            replica.apply(self.frames[-1])
        return sent


@pytest.mark.parametrize("coder", [Quantized(1), LowRank(1, 1), LowRank(2, 8)], ids=lambda coder: coder.describe())
def test_nothing_of_a_change_is_lost(coder: Compressor, tmp_path: Path) -> None:
    """At any time what was trained is what was applied and what the residual holds, also after a skipped round."""
    member = Member(coder, tmp_path)
    trained = applied = torch.zeros(member.agreement.layout.numel)
    for number, skipped in enumerate((False, True, False, True, True, False), start=1):
        sent = member.round(number, skipped=skipped)
        trained = trained + member.task.delta
        applied = applied if skipped else applied + sent
        residual = member.residuals.load(member.replica, number + 1, member.agreement.uplink)
        assert residual is not None
        torch.testing.assert_close(applied + residual, trained, atol=1e-6, rtol=0)
    assert member.replica.version == 3


def test_coefficients_of_another_space_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"shape \(3,\); the compressor's space has 16 values in this round"):
        Member(LowRank(1), tmp_path, Shift(as_coefficients=True)).round(1)
