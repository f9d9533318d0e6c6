"""What a member sent in vain under masks is sent again: nothing of an update is lost with a round or a reply."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message
from torch import nn

from distro_fed.clients import RoundInfo, TrainResult
from distro_fed.compression import make_compressor
from distro_fed.compression.base import Compressor
from distro_fed.strategies.common_scales import ScaleRule
from tests import federation
from tests.strategies.secure_members import Members


def first_round_only(model: nn.Module, info: RoundInfo) -> TrainResult:
    if info.round == 1:
        for parameter in model.parameters():
            parameter.data += 0.01
    return TrainResult(num_examples=1, loss=1.0)


@pytest.mark.parametrize(
    "compressor", [make_compressor("dense"), make_compressor("quantized", bits=8)], ids=lambda coder: coder.name
)
@pytest.mark.parametrize("lost", [(102, 103, 104), (104,)], ids=["a skipped round", "a drop-out"])
def test_what_was_sent_in_vain_is_sent_again(tmp_path: Path, compressor: Compressor, lost: tuple[int, ...]) -> None:
    def lose(reply: Message, node_id: int) -> Message:
        if reply.metadata.message_type == "train" and reply.metadata.group_id == "1" and node_id in lost:
            for key in list(reply.content):
                del reply.content[key]
        return reply

    server, _ = Members(tmp_path).run(
        compressor, rounds=2, train=first_round_only, tamper=lose, state_dir=str(tmp_path / "kept"),
        run_config={"error-feedback": True}, strategy={"scale_rule": ScaleRule(initial=0.02)},
    )  # fmt: skip
    first, second = server.progress.history()
    assert (first.skipped, len(first.left_out), second.skipped) == (len(lost) == 3, len(lost), False)
    moved = server.replica.values - federation.make_model().read()
    # of a drop-out, the mean over three members and then a fourth of what the other one sends again
    expected = 0.01 if first.skipped else 0.01 + 0.01 / 4
    assert float(moved.mean()) == pytest.approx(expected, rel=0.05)
