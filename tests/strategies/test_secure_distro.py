"""Secure aggregation through Flower's messages: the same model as in clear, and nothing about one member alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message
from torch import nn

from distro_fed.clients import RoundInfo, TrainResult
from distro_fed.compression import make_compressor
from distro_fed.compression.base import Compressor
from distro_fed.errors import SettingsError
from distro_fed.presets import SELECTING
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.weighting import Weighting
from distro_fed.settings import RunSettings, TrainingSettings
from distro_fed.strategies.secure_distro import SecureDistroStrategy
from tests import federation
from tests.strategies.secure_members import Members


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


@pytest.mark.parametrize(
    "compressor",
    [make_compressor("quantized", bits=8), make_compressor("subspace", rank=2, bits=8),
     make_compressor("lowrank", rank=1, bits=8)],
    ids=lambda compressor: compressor.name,
)  # fmt: skip
def test_the_model_is_that_of_plain_aggregation(members: Members, compressor: Compressor) -> None:
    secure, _ = members.run(compressor)
    plain, _ = federation.run(compressor=compressor, strategy={"weighted_by_key": None})
    start = federation.make_model().read()
    assert secure.replica.version == plain.replica.version == 3
    # a handful of values a tensor: their scales differ widely, and the mean takes the mean scale
    moves = [server.replica.values - start for server in (secure, plain)]
    assert float(torch.cosine_similarity(moves[0], moves[1], dim=0)) > 0.8


def test_losses_are_means_over_all_members(members: Members) -> None:
    secure, _ = members.run(make_compressor("quantized", bits=8))
    plain, _ = federation.run(compressor=make_compressor("quantized", bits=8), strategy={"weighted_by_key": None})
    assert secure.progress.held_out[0].keys() == {"all members"}
    expected = plain.progress.held_out[0]
    assert secure.progress.held_out[0]["all members"] == pytest.approx(sum(expected.values()) / len(expected), rel=1e-6)
    assert secure.progress.held_out[3].keys() == {"all members"}
    assert secure.progress.history()[0].train_loss == pytest.approx(1.0)


def lossy_train(model: nn.Module, info: RoundInfo) -> TrainResult:
    """The loss of a client is its number; client 3 has none that could be summed."""
    number = federation.partition(info)
    return replace(federation.shift_train(model, info), loss=float(number) if number < 3 else -1.0)


def test_weights_of_the_roster(tmp_path: Path) -> None:
    weighted = Members(tmp_path, Policy(min_cohort=3, min_survivors=2, weights=(Weighting.ROSTER,)))
    secure, _ = weighted.run(make_compressor("quantized", bits=8), train=lossy_train)
    # as many examples as the roster gives them weight
    plain, _ = federation.run(compressor=make_compressor("quantized", bits=8))
    start = federation.make_model().read()
    moves = [server.replica.values - start for server in (secure, plain)]
    assert float(torch.cosine_similarity(moves[0], moves[1], dim=0)) > 0.8
    assert secure.progress.history()[0].train_loss == pytest.approx((1 * 0 + 2 * 1 + 3 * 2) / (1 + 2 + 3))


def test_a_loss_that_cannot_be_summed_costs_nobody_the_round(members: Members) -> None:
    secure, _ = members.run(make_compressor("quantized", bits=8), train=lossy_train, rounds=1)
    (record,) = secure.progress.history()
    assert not record.left_out
    assert record.train_loss == pytest.approx((0 + 1 + 2) / 3)


def test_members_that_train_otherwise_than_the_server_says_refuse(members: Members) -> None:
    other = RunSettings(training=TrainingSettings(local_steps=11))
    secure, _ = members.run(make_compressor("quantized", bits=8), rounds=1, strategy={"settings": other})
    (record,) = secure.progress.history()
    assert record.skipped
    assert len(record.left_out) == 4
    assert all("other-plan" in one.reason for one in record.left_out)


def test_weights_that_do_not_fit(members: Members) -> None:
    heavy = Roster("test", tuple(replace(member, weight=2**23) for member in members.roster.members))
    policy = Policy(weights=(Weighting.ROSTER,))
    with pytest.raises(SettingsError, match="weights of 33554432 together take 33 bits"):
        SecureDistroStrategy(roster=heavy, policy=policy, compressor=make_compressor("quantized", bits=8))


def test_no_reply_says_anything_about_one_member(members: Members) -> None:
    seen: list[Message] = []

    def watch(reply: Message, node_id: int) -> Message:
        del node_id
        seen.append(reply)
        return reply

    members.run(make_compressor("quantized", bits=1), tamper=watch)
    assert seen
    for reply in seen:
        assert not any(reply.content.metric_records.values())
        assert "arrays" not in reply.content


def test_a_round_takes_three_exchanges(members: Members) -> None:
    count = 0

    def watch(reply: Message, node_id: int) -> Message:
        nonlocal count
        count += node_id == 101
        return reply

    members.run(make_compressor("quantized", bits=1), tamper=watch, rounds=5)
    # two more before the first round; the final evaluation takes one, and two for its own end
    assert count == 2 + 3 * 5 + 1 + 2


@pytest.mark.parametrize("silent", ["query.secure", "train"])
def test_a_member_that_falls_silent_is_left_out(members: Members, silent: str) -> None:
    def drop(message: Message, node_id: int) -> bool:
        return node_id == 104 and message.metadata.message_type.startswith(silent)

    secure, _ = members.run(make_compressor("quantized", bits=8), drop=drop, rounds=2)
    assert secure.replica.version == 2


def test_with_too_few_members_the_round_is_skipped(members: Members) -> None:
    def drop(message: Message, node_id: int) -> bool:
        return node_id > 102 and message.metadata.message_type == "train"

    secure, _ = members.run(make_compressor("quantized", bits=8), drop=drop, rounds=2)
    assert secure.replica.version == 0
    assert torch.equal(secure.replica.values, federation.make_model().read())


@pytest.mark.parametrize("retries", [1, 3])
def test_after_a_skipped_round_the_space_is_that_of_the_version(tmp_path: Path, retries: int) -> None:
    # the space of lowrank changes with the version, and the next round was agreed on for one that did not come
    members = Members(tmp_path, Policy(min_cohort=3, min_survivors=2, max_attempts=retries))
    asked: dict[int, int] = {}

    def drop(message: Message, node_id: int) -> bool:
        training = message.metadata.message_type == "train"
        asked[node_id] = asked.get(node_id, 0) + training
        return training and node_id > 102 and asked[node_id] == 1

    secure, _ = members.run(make_compressor("lowrank", rank=1, bits=8), drop=drop, rounds=4)
    skipped = [record.round for record in secure.progress.history() if record.skipped]
    assert skipped == ([1] if retries > 1 else [1, 2])


def test_with_too_few_nodes_the_round_is_skipped(members: Members) -> None:
    class Short(SecureDistroStrategy):
        def configure_train(self, server_round: int, *rest: Any) -> Any:
            self.min_available_nodes = 5 if server_round == 2 else 1
            return super().configure_train(server_round, *rest)

    secure, _ = members.run(make_compressor("quantized", bits=8), kind=Short)
    assert [record.skipped for record in secure.progress.history()] == [False, True, False]
    assert secure.progress.held_out[3].keys() == {"all members"}


def test_a_configuration_of_any_kind_is_agreed_on(members: Members) -> None:
    class Configured(SecureDistroStrategy):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            extra: dict[str, Any] = {
                "lr": 0.1,
                "steps": 7,
                "words": ["a", "b"],
                "raw": b"\0",
                "on": True,
                "rates": [1.0, 2.5],
                "none": "",
            }
            return super().configure_train(server_round, arrays, ConfigRecord({**config, **extra}), grid)

    secure, _ = members.run(make_compressor("quantized", bits=8), kind=Configured, rounds=2)
    assert secure.replica.version == 2


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(min_survivors=5), "min-survivors is 5"),
        (Policy(min_cohort=5), "min-cohort is 5"),
        (Policy(bits=(1, 4)), "8 bits"),
    ],
)
def test_a_policy_under_which_all_members_would_refuse_is_an_error(
    members: Members, policy: Policy, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        SecureDistroStrategy(roster=members.roster, policy=policy, compressor=make_compressor("quantized", bits=8))


def test_members_refuse_to_send_in_clear(members: Members) -> None:
    plain, _ = federation.run(
        compressor=make_compressor("quantized", bits=8),
        node_configs=[{"secure-folder": str(own)} for own in members.folders],
    )
    assert plain.replica.version == 0
    assert all("refused" in one.reason for one in plain.progress.history()[0].left_out)


def test_members_without_files_take_no_part(members: Members) -> None:
    server, _ = federation.run(
        compressor=make_compressor("quantized", bits=8), kind=SecureDistroStrategy,
        strategy={"roster": members.roster, "policy": members.policy},
    )  # fmt: skip
    assert server.replica.version == 0


@pytest.mark.parametrize("name", SELECTING)
def test_compressors_without_integers_are_refused(members: Members, name: str) -> None:
    with pytest.raises(SettingsError, match="quantized"):
        SecureDistroStrategy(roster=members.roster, policy=members.policy, compressor=name)
