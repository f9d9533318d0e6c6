"""A server whose common scales cannot be used, or are not the same for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from distro_fed.compression import make_compressor
from distro_fed.compression.scales import SCALE_BYTES, pack_scales
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.secure_aggregation.weighting import Weighting
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.common_scales import ScaleRule
from distro_fed.strategies.secure_distro import SecureDistroStrategy
from distro_fed.transport.records import CONFIG, SCALES, read_reply, reply_records
from tests import federation
from tests.strategies.secure_members import Members


def announcing(scales: Callable[[bytes], bytes]) -> type[DistroStrategy]:
    class Malicious(DistroStrategy):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            wrong = scales(bytes(config[SCALES]))
            return super().configure_train(server_round, arrays, ConfigRecord({**config, SCALES: wrong}), grid)

    return Malicious


@pytest.mark.parametrize(
    "wrong",
    [
        lambda right: b"\xc0\x7f" + right[2:],
        lambda right: b"\x80\xff" + right[2:],
        lambda right: b"\x00\xbf" + right[2:],
        lambda right: right[2:],
        lambda right: right + right,
        lambda right: right[:-1],
    ],
    ids=["nan", "-inf", "negative", "one less", "twice as many", "half a scale"],
)
def test_members_refuse_scales_that_cannot_be_used(wrong: Callable[[bytes], bytes]) -> None:
    server, _ = federation.run(
        compressor=make_compressor("quantized", bits=2), kind=announcing(wrong), rounds=1,
        strategy={"scale_rule": ScaleRule(initial=0.1)},
    )  # fmt: skip
    assert server.replica.version == 0
    assert all("unusable-scales" in one.reason for one in server.progress.history()[0].left_out)


def test_members_refuse_scales_where_there_are_none() -> None:
    class Malicious(DistroStrategy):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            return super().configure_train(server_round, arrays, ConfigRecord({**config, SCALES: b"\0\0"}), grid)

    server, _ = federation.run(compressor="dense", kind=Malicious, rounds=1)
    assert all("unusable-scales" in one.reason for one in server.progress.history()[0].left_out)


def test_a_server_that_announces_other_scales_to_one_member_gets_no_sum(tmp_path: Path) -> None:
    class Curious(SecureDistroStrategy):
        def configure_train(self, *arguments: Any) -> Iterable[Message]:
            for message in super().configure_train(*arguments):
                if message.metadata.dst_node_id != 104:
                    # all others clip their updates to nothing
                    scales = message.content.config_records[CONFIG][SCALES]
                    assert isinstance(scales, bytes)
                    message.content.config_records[CONFIG][SCALES] = b"\x80\0" * (len(scales) // 2)
                yield message

    server, _ = Members(tmp_path).run(
        make_compressor("quantized", bits=8), kind=Curious, rounds=1, strategy={"scale_rule": ScaleRule(initial=0.1)}
    )
    (record,) = server.progress.history()
    assert record.skipped
    assert len(record.left_out) == 3
    assert all("other-model" in one.reason for one in record.left_out)


@pytest.mark.parametrize("scale", [2.0**16 / 2.5, 2.0**11])
def test_huge_scales_do_not_sort_members_by_their_masked_weights(tmp_path: Path, scale: float) -> None:
    """They come back in the residual: what members measure next is as large."""

    class Curious(SecureDistroStrategy):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            count = len(bytes(config[SCALES])) // SCALE_BYTES
            wrong = pack_scales(np.full(count, scale if server_round == 1 else 1e-3, np.float32))
            return super().configure_train(server_round, arrays, ConfigRecord({**config, SCALES: wrong}), grid)

    # weights 1 to 4
    members = Members(tmp_path, Policy(min_cohort=3, min_survivors=2, bits=(1, 20), weights=(Weighting.MASKED,)))
    server, _ = members.run(
        make_compressor("quantized", bits=1), kind=Curious, rounds=2, state_dir=str(tmp_path / "kept"),
        strategy={"scale_rule": ScaleRule(initial=0.02)}, run_config={"error-feedback": True, "weight-unit": 1},
    )  # fmt: skip
    assert len(server.progress.history()[1].left_out) in (0, 4)


@pytest.mark.parametrize("field", [b"\xc0\x7f", b"\x80\xff", b"\x00\xbf"], ids=["nan", "-inf", "negative"])
def test_a_member_that_says_it_measured_what_cannot_be_is_left_out(field: bytes) -> None:
    def lie(reply: Message, node_id: int) -> Message:
        if node_id == 102 and reply.metadata.message_type == "train":
            parsed = read_reply(reply)
            assert parsed.update is not None
            body = field + bytes(parsed.update.body)[2:]
            lying = reply_records(replace(parsed, update=replace(parsed.update, body=body)))
            for key in lying:
                reply.content[key] = lying[key]
        return reply

    server, _ = federation.run(
        compressor=make_compressor("quantized", bits=2), tamper=lie, rounds=2,
        strategy={"scale_rule": ScaleRule(initial=0.1)},
    )  # fmt: skip
    assert server.replica.version == 2
    assert [one.client for one in server.progress.history()[0].left_out] == ["client-1"]
    assert bool(server.replica.values.isfinite().all())
