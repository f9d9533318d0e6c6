"""Members that weigh as much as they have data, and tell nobody how much that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from distro_fed.compression import make_compressor
from distro_fed.compression.base import Compressor
from distro_fed.errors import SettingsError
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.secure_aggregation.weighting import Weighting
from distro_fed.settings import RunSettings
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.common_scales import ScaleRule
from distro_fed.transport.secure_records import read_messages
from tests import federation
from tests.strategies.secure_members import Members

POLICY = Policy(min_cohort=3, min_survivors=2, bits=(1, 20), weights=(Weighting.MASKED,))
#: clients 0 to 3 have 1 to 4 examples
UNIT = {"weight-unit": 1}
RULE = {"scale_rule": ScaleRule(initial=0.02)}


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path, POLICY)


def difference(secure: DistroStrategy, plain: DistroStrategy) -> float:
    moved = plain.replica.values - federation.make_model().read()
    return float((secure.replica.values - plain.replica.values).abs().max() / moved.abs().max())


@pytest.mark.parametrize(
    "compressor", [make_compressor("quantized", bits=1), make_compressor("lowrank", rank=1, bits=1),
                   make_compressor("tracking", rank=1, bits=1)],
    ids=lambda compressor: compressor.name,
)  # fmt: skip
def test_the_mean_is_the_weighted_one(members: Members, compressor: Compressor) -> None:
    secure, _ = members.run(compressor, strategy=RULE, run_config=UNIT)
    plain, _ = federation.run(compressor=compressor, strategy=RULE)
    uniform, _ = federation.run(compressor=compressor, strategy={"weighted_by_key": None, **RULE})
    assert secure.replica.version == 3
    assert difference(secure, plain) < 1e-6
    assert difference(secure, uniform) > 1e-3


def test_dense_updates_too(members: Members) -> None:
    secure, _ = members.run(make_compressor("dense"), strategy={"scale_rule": ScaleRule(initial=0.0625)},
                            run_config=UNIT, rounds=1)  # fmt: skip
    plain, _ = federation.run(compressor="dense", rounds=1)
    assert difference(secure, plain) < 1e-3


def test_the_mean_is_over_those_that_are_left(members: Members) -> None:
    def drop(message: Message, node_id: int) -> bool:
        return node_id == 104 and message.metadata.message_type == "train"

    compressor = make_compressor("quantized", bits=1)
    secure, _ = members.run(compressor, strategy=RULE, run_config=UNIT, drop=drop, rounds=2)
    plain, _ = federation.run(compressor=compressor, strategy=RULE, drop=drop, rounds=2)
    assert secure.replica.version == plain.replica.version == 2
    assert difference(secure, plain) < 1e-6


def test_no_reply_tells_a_weight(members: Members) -> None:
    sizes: dict[int, list[int]] = {}

    def watch(reply: Message, node_id: int) -> Message:
        assert not any(reply.content.metric_records.values())
        sizes.setdefault(node_id, []).extend(len(message) for message in read_messages(reply.content))
        return reply

    members.run(make_compressor("quantized", bits=4), tamper=watch, run_config=UNIT)
    assert len(sizes) == 4
    assert len({tuple(lengths) for lengths in sizes.values()}) == 1


def test_the_proposal_has_room_for_the_weights(members: Members) -> None:
    server, _ = members.run(make_compressor("quantized", bits=8), run_config=UNIT, rounds=1)
    metrics = server.run_state.result.train_metrics_clientapp[1]
    assert metrics["members"] == 4.0
    proposal = server._propose(2, 1, evaluation=False, attempt=1).proposal
    assert (proposal.bits, proposal.width) == (12, 14)


def test_members_with_another_unit_refuse(members: Members) -> None:
    other: dict[str, Any] = {"settings": RunSettings.from_run_config({"compressor": "quantized", "weight-unit": 7})}
    server, _ = members.run(make_compressor("quantized", bits=1), run_config=UNIT, strategy=other, rounds=1)
    (record,) = server.progress.history()
    assert record.skipped
    assert all("other-plan" in one.reason for one in record.left_out)


def test_members_whose_policy_does_not_have_it_refuse(tmp_path: Path) -> None:
    members = Members(tmp_path, Policy(min_cohort=3, min_survivors=2))
    members.policy = POLICY
    server, _ = members.run(make_compressor("quantized", bits=1), run_config=UNIT, rounds=1)
    (record,) = server.progress.history()
    assert record.skipped
    assert all("forbidden-weights" in one.reason for one in record.left_out)


def test_bits_that_the_policy_does_not_have_are_an_error(members: Members) -> None:
    policy = Policy(min_cohort=3, min_survivors=2, weights=(Weighting.MASKED,))
    with pytest.raises(SettingsError, match="updates have 20 bits a value"):
        members.run(make_compressor("dense"), strategy={"policy": policy})
