"""The strategy in an in-process federation whose messages go through Flower's serialisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord
from torch import nn

from distro_fed.clients import PrivateClient, RoundInfo, TrainResult
from distro_fed.compression import make_compressor
from distro_fed.errors import NotEnoughNodes
from distro_fed.model.trainable import Trainable
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.initial import replica_arrays
from distro_fed.transport.flower_compat import SUPERLINK_NODE_ID, set_identity
from distro_fed.transport.local_grid import LocalGrid
from distro_fed.transport.records import STYPE
from tests.federation import make_model, partition, run, shift_train

COMPRESSORS = ["dense", "quantized", "topk", "dct-topk", "subspace", "lowrank", "tracking", "tracking-topk"]


def coder(name: str) -> Any:
    return make_compressor(name, density=0.2, bits=2, rank=1)


def test_dense_is_the_weighted_mean_of_the_members_updates() -> None:
    """Against plain arithmetic, without any code of the package between."""
    server, _ = run(rounds=1, nodes=3)
    start = make_model().read()
    total = torch.zeros_like(start)
    for index in range(3):
        trainable = make_model()
        shift_train(trainable.model, RoundInfo(1, 1, "", Any, {"partition-id": index}))  # type: ignore[arg-type]
        total += (index + 1) * (trainable.read() - start)
    torch.testing.assert_close(server.replica.values, start + total / 6, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_same_seed_same_bits_whatever_the_order_of_arrival(name: str) -> None:
    orders: list[Callable[[list[int]], list[int]]] = [list, lambda ids: ids[::-1], lambda ids: ids[2:] + ids[:2]]
    results = [run(compressor=coder(name), order=order)[0].replica for order in orders]
    assert all(torch.equal(results[0].values, other.values) for other in results)
    assert len({result.chain for result in results}) == 1
    assert results[0].version == 3


@pytest.mark.parametrize("name", COMPRESSORS)
def test_members_evaluate_exactly_the_servers_replica(name: str) -> None:
    server, _ = run(compressor=coder(name), rounds=2)
    expected = float(server.replica.values.square().sum())
    assert server.progress.held_out[2].values() == pytest.approx([expected] * 4, rel=1e-5)
    assert len(server.progress.held_out[0]) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_travels(dtype: torch.dtype) -> None:
    server, _ = run(compressor=coder("quantized"), dtype=dtype)
    assert server.replica.version == 3
    assert not server.progress.history()[0].left_out


def test_an_array_record_is_a_model_too() -> None:
    trainable = make_model()
    arrays = ArrayRecord({name: Array(value.detach().numpy()) for name, value in trainable.parameters.items()})
    server = DistroStrategy()
    server.prepare(arrays, run_id=1, num_rounds=1)
    assert torch.equal(server.replica.values, trainable.read())
    backwards = list(trainable.parameters)[::-1]
    assert list(replica_arrays(server.replica, backwards)) == backwards


def test_arrays_come_back_in_the_order_in_which_they_were_given() -> None:
    """``ArrayRecord(list of ndarrays)`` names them "0" to "11": sorted by name they would change places."""
    given = ArrayRecord([np.full((2,), float(index), np.float32) for index in range(12)])
    app = PrivateClient(lambda: _trainable_of(given), lambda model, info: TrainResult(1, 1.0)).app()
    grid = LocalGrid(app, 2, run_config={"compressor": "dense"})
    result = DistroStrategy(compressor="dense", round_timeout=1).start(grid, given, 1)
    assert [float(array[0]) for array in result.arrays.to_numpy_ndarrays()] == list(range(12))


def _trainable_of(arrays: ArrayRecord) -> Trainable:
    module = nn.ParameterDict({name: nn.Parameter(torch.from_numpy(arrays[name].numpy().copy())) for name in arrays})
    return Trainable(module, dict(module.items()))


def test_bytes_of_the_ledger_are_those_on_the_wire() -> None:
    server, grid = run(compressor=coder("quantized"))
    by_partition = {f"client-{index}": 101 + index for index in range(4)}
    for name, node_id in by_partition.items():
        assert server.ledger.total(client=name, direction="up") == grid.bytes_up[node_id]
        assert server.ledger.total(client=name, direction="down") == grid.bytes_down[node_id]


def test_nobody_is_sent_the_model() -> None:
    """A member that keeps its replica gets one compressed update a round, and no keyframe."""
    server, _ = run(compressor=coder("quantized"), rounds=4, model=lambda: make_model(width=300))
    assert server.courier.downlink.keyframes_sent == 0


def test_who_is_sampled_depends_on_names_and_seed_not_on_node_ids() -> None:
    """Flower's node ids are random; the same organisations with other ids give the same bits."""

    def shuffled(ids: list[int]) -> Any:
        def config(index: int) -> dict[str, int]:
            return {"partition-id": ids[index]}

        return run(
            compressor=coder("quantized"), nodes=6, node_configs=[config(index) for index in range(6)],
            strategy={"fraction_train": 0.5, "seed": 3}, run_config={"seed": 3},
        )[0]  # fmt: skip

    one, other = shuffled([0, 1, 2, 3, 4, 5]), shuffled([4, 2, 0, 5, 1, 3])
    assert torch.equal(one.replica.values, other.replica.values)
    assert one.ledger.total(kind="other") > 0
    assert one.replica.version == 3


# --- members that fail ------------------------------------------------------------------------------


def broken(kind: str) -> Callable[[nn.Module, RoundInfo], TrainResult]:
    def train(model: nn.Module, info: RoundInfo) -> TrainResult:
        result = shift_train(model, info)
        if partition(info) != 1:
            return result
        if kind == "nan":
            next(model.parameters()).data.fill_(math.nan)
        elif kind == "exception":
            raise RuntimeError("patient 4711 has a cold")
        elif kind == "no examples":
            return TrainResult(num_examples=0, loss=1.0)
        elif kind == "not a result":
            return 3  # type: ignore[return-value]
        return result

    return train


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", "training"),
        ("exception", "exception RuntimeError"),
        ("no examples", "0 training examples"),
        ("not a result", "settings"),
    ],
)
def test_one_bad_member_is_left_out_by_name_and_the_rest_goes_on(
    kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = run(rounds=2, train=broken(kind))
    assert server.replica.version == 2
    for record in server.progress.history():
        assert [(item.client, reason in item.reason) for item in record.left_out] == [("client-1", True)]
    assert "patient" not in " ".join(record.getMessage() for record in caplog.records if record.name == "flwr")
    others, _ = run(rounds=2, nodes=4, drop=lambda message, node_id: node_id == 102)
    assert torch.equal(server.replica.values, others.replica.values)


def tampered(change: Callable[[Message], None]) -> Callable[[Message, int], Message]:
    def tamper(message: Message, node_id: int) -> Message:
        if node_id == 102 and message.has_content() and "arrays" in message.content:
            change(message)
        return message

    return tamper


def set_frame(message: Message, change: Callable[[bytes], bytes]) -> None:
    data = change(message.content.array_records["arrays"]["update"].data)
    message.content.array_records["arrays"]["update"] = Array("uint8", (len(data),), STYPE, data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda message: set_frame(message, lambda data: data[:-1]), "truncated-frame"),
        (lambda message: set_frame(message, lambda data: b"\x00" + data), "bad-magic"),
        (lambda message: message.content.pop("metrics"), "reply lacks"),
        (lambda message: message.content.pop("config"), "reply lacks"),
        (lambda message: message.content.pop("arrays"), "it holds no update"),
        (lambda message: message.content.__setitem__("metrics", MetricRecord({"num-examples": 1e13})), "weight"),
        (
            lambda message: message.content.__setitem__("arrays", ArrayRecord({"update": Array(np.zeros(2))})),
            "stype",
        ),
    ],
)
def test_a_reply_that_is_not_what_it_should_be_is_left_out(change: Callable[[Message], None], reason: str) -> None:
    server, _ = run(rounds=1, tamper=tampered(change))
    (left_out,) = server.progress.history()[0].left_out
    assert left_out.client in ("client-1", "node 102")
    assert reason in left_out.reason
    assert server.replica.version == 1


def test_numbers_that_are_finite_but_absurd_cost_a_round_at_most() -> None:
    def absurd(model: nn.Module, info: RoundInfo) -> TrainResult:
        result = shift_train(model, info)
        if partition(info) == 1 and info.round == 1:
            for parameter in model.parameters():
                parameter.data.fill_(1.8e19)
            return TrainResult(num_examples=10**12, loss=1.0)
        return result

    server, _ = run(rounds=3, train=absurd, compressor=coder("quantized"))
    assert server.replica.version >= 2
    assert server.replica.values.isfinite().all()


def test_replies_that_flower_makes_count_for_the_node_they_are_about() -> None:
    """NODE_UNAVAILABLE and the like come from the SuperLink, in the name of nobody."""

    def unavailable(message: Message, node_id: int) -> Message:
        if node_id == 102:
            before = set_identity(1, SUPERLINK_NODE_ID)
            error = Message(Error(5, "Node Unavailable"), reply_to=message)
            error.metadata.__dict__["_reply_to_message_id"] = message.metadata.reply_to_message_id
            error.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
            set_identity(1, before)
            return error
        return message

    server, _ = run(rounds=1, tamper=unavailable)
    (left_out,) = server.progress.history()[0].left_out
    assert "Node Unavailable" in left_out.reason
    assert left_out.client == "node 102"
    assert not any(name == "node 1" for name in server.ledger.clients())


def test_a_member_cannot_make_the_server_hold_many_keyframes() -> None:
    server, _ = run(rounds=1)
    kept = [server.courier.downlink.lacking(version, 2)[0] for version in (-1, 10**6, 10**6 + 1, -7)]
    assert all(record is kept[0] for record in kept)


def test_partial_participation_is_not_charged_to_the_references() -> None:
    server, _ = run(rounds=2, nodes=4, strategy={"fraction_train": 0.5})
    assert [record.asked for record in server.progress.history()] == [2, 2]


def test_a_member_with_another_rank_is_told_apart() -> None:
    def model_of_member() -> Any:
        return make_model(width=7)

    server, _ = run(rounds=1, model=model_of_member, strategy={"quorum": 0.25})
    reasons = [item.reason for item in server.progress.history()[0].left_out]
    assert len(reasons) == 4
    assert all("wrong-run" in reason for reason in reasons)
    assert server.replica.version == 0


def test_a_replayed_update_of_the_round_before_is_refused() -> None:
    kept: dict[int, bytes] = {}

    def replay(message: Message, node_id: int) -> Message:
        if node_id == 102 and message.has_content() and "arrays" in message.content:
            data = message.content.array_records["arrays"]["update"].data
            set_frame(message, lambda _: kept.setdefault(node_id, data))
        return message

    server, _ = run(rounds=2, tamper=replay)
    first, second = server.progress.history()
    assert not first.left_out
    assert "update of round 1, this is round 2" in second.left_out[0].reason


def test_below_the_quorum_the_round_is_skipped_and_the_model_unchanged() -> None:
    server, _ = run(rounds=2, drop=lambda message, node_id: node_id in (101, 102, 103), strategy={"quorum": 0.5})
    assert server.replica.version == 0
    assert torch.equal(server.replica.values, make_model().read())
    assert [record.skipped for record in server.progress.history()] == [True, True]
    assert {item.reason for item in server.progress.history()[0].left_out} == {"no answer in time"}


def test_a_skipped_round_does_not_break_the_next() -> None:
    def only_round_1_fails(message: Message, node_id: int) -> bool:
        return message.metadata.group_id == "1" and node_id != 101

    server, _ = run(rounds=3, drop=only_round_1_fails)
    assert server.replica.version == 2
    assert [record.skipped for record in server.progress.history()] == [True, False, False]


def test_too_few_nodes_end_the_run() -> None:
    with pytest.raises(NotEnoughNodes, match="2 of the 5 nodes"):
        run(nodes=2, strategy={"min_available_nodes": 5})


# --- catching up ------------------------------------------------------------------------------------


def test_stateless_members_are_sent_everything_and_end_at_the_same_model(tmp_path: Path) -> None:
    stateless, stateless_grid = run(compressor=coder("quantized"), rounds=4)
    stateful, stateful_grid = run(compressor=coder("quantized"), rounds=4, state_dir=str(tmp_path))
    assert torch.equal(stateless.replica.values, stateful.replica.values)
    assert stateless_grid.bytes_down[101] > stateful_grid.bytes_down[101]


def test_a_member_that_lost_its_folder_says_so_and_is_sent_what_it_lacks(tmp_path: Path) -> None:
    """Its process is new and its files are gone, but the server thinks it holds a version."""
    import shutil

    apps = [PrivateClient(make_model, shift_train, state_dir=str(tmp_path / str(age))) for age in range(2)]
    served = [apps[0].app(), apps[1].app()]
    seen: list[str] = []

    def app(message: Message, context: Any) -> Message:
        young = message.metadata.group_id in ("3", "4") and context.node_id == 101
        reply = served[young](message, context)
        if young:
            seen.append(str(reply.content.config_records["config"]["status"]))
        return reply

    grid = LocalGrid(app, 2, run_config={"compressor": "quantized"})  # type: ignore[arg-type]
    server = DistroStrategy(compressor="quantized", round_timeout=0.3, fraction_evaluate=0.0)
    server.start(grid, make_model(), 4)
    shutil.rmtree(tmp_path)
    assert seen == ["behind", "ok", "ok"]
    assert not any(record.left_out for record in server.progress.history())
    assert server.replica.version == 4


def test_a_member_with_other_initial_values_gets_one_keyframe(tmp_path: Path) -> None:
    server, grid = run(
        compressor=coder("quantized"), rounds=3, state_dir=str(tmp_path), model=lambda: make_model(seed=99), nodes=2
    )
    assert server.courier.downlink.keyframes_sent == 2
    assert not any(record.left_out for record in server.progress.history())
    assert server.ledger.total(kind="keyframe") > 0
    expected = float(server.replica.values.square().sum())
    assert server.progress.held_out[3]["client-0"] == pytest.approx(expected, rel=1e-5)
    del grid


def test_a_late_joiner_is_sent_the_log(tmp_path: Path) -> None:
    app = PrivateClient(make_model, shift_train).app()
    grid = LocalGrid(app, 2, run_config={"compressor": "quantized"})
    server = DistroStrategy(compressor="quantized", round_timeout=0.3)
    joined: list[int] = []

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round_ == 2:
            joined.append(grid.add_node({"partition-id": 2}))
        return MetricRecord({"values": sum(array.numpy().size for array in arrays.values())})

    result = server.start(grid, make_model(), 4, evaluate_fn=evaluate)
    assert not any(record.left_out for record in server.progress.history())
    assert server.ledger.total(client="client-2", direction="up") > 0
    assert result.evaluate_metrics_serverapp[0]["values"] == make_model().layout.numel


def test_residuals_at_both_ends_bring_one_bit_close_to_dense() -> None:
    """Error feedback: the sum of what was applied follows the sum of what was trained."""

    def steady(model: nn.Module, info: RoundInfo) -> TrainResult:
        for index, parameter in enumerate(model.parameters()):
            parameter.data += 0.01 * torch.linspace(-1, 3 + index, parameter.numel()).view(parameter.shape)
        return TrainResult(1, 1.0)

    def distance(**options: Any) -> float:
        server, _ = run(rounds=12, nodes=2, train=steady, **options)
        return float((server.replica.values - dense).norm())

    dense = run(rounds=12, nodes=2, train=steady)[0].replica.values
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        feedback = {"run_config": {"error-feedback": True}, "state_dir": folder}
        assert distance(compressor="quantized", strategy={"server_residual": True}, **feedback) < 0.3 * distance(
            compressor="quantized"
        )


def test_a_second_run_of_a_strategy_starts_its_ledger_anew() -> None:
    server, grid = run(rounds=1)
    before = sum(grid.bytes_up.values()) + sum(grid.bytes_down.values())
    server.start(grid, make_model(), 1)
    assert server.ledger.total() == sum(grid.bytes_up.values()) + sum(grid.bytes_down.values()) - before


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_compressor_by_name_is_the_one_that_members_take(name: str) -> None:
    app = PrivateClient(make_model, shift_train).app()
    grid = LocalGrid(app, 2, run_config={"compressor": name, "mode": "full"})
    server = DistroStrategy(compressor=name, round_timeout=1)
    server.start(grid, make_model(), 1)
    assert server.replica.version == 1
