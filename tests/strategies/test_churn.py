"""Nodes that go and come, and replicas that change by themselves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Error, Message

from distro_fed.clients import PrivateClient
from distro_fed.replica import Replica
from distro_fed.reporting.events import EventWriter, read_events
from distro_fed.strategies import DistroStrategy
from distro_fed.transport.flower_compat import SUPERLINK_NODE_ID, set_identity
from distro_fed.transport.local_grid import LocalGrid
from distro_fed.update import parse_frame
from tests.federation import make_model, norm_evaluate, partition, shift_train


class ChurnGrid(LocalGrid):
    """Every node is a machine of its own; a machine may be away, and starts a new process for every message."""

    def __init__(self, folder: Path, nodes: int = 4, **options: Any) -> None:
        self.folder, self.away = folder, set[int]()
        #: what becomes of a reply before it is sent
        self.on_reply: Callable[[Message, int], Message] = lambda reply, _: reply
        super().__init__(self._answer_in_a_new_process, nodes, run_config={"compressor": "quantized"}, **options)  # type: ignore[arg-type]

    def state_dir(self, node_id: int) -> Path:
        return self.folder / str(node_id)

    def _answer_in_a_new_process(self, message: Message, context: Any) -> Message:
        if context.node_id in self.away:
            before = set_identity(1, SUPERLINK_NODE_ID)
            error = Message(Error(5, "Node Unavailable"), reply_to=message)
            error.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
            set_identity(1, before)
            return error
        # 5,000 values: sixteen updates are smaller than a keyframe
        client = PrivateClient(big_model, shift_train, norm_evaluate, state_dir=str(self.state_dir(context.node_id)))
        return client.app()(message, context)

    def get_node_ids(self) -> Iterable[int]:
        return [node_id for node_id in super().get_node_ids() if node_id not in self.away]


def big_model() -> Any:
    return make_model(width=500)


def serve(grid: LocalGrid, rounds: int, before: Callable[[int], None] = lambda _: None, **options: Any) -> Any:
    """``before(r)`` happens after round r - 1, before round r."""

    def evaluate(round_: int, arrays: ArrayRecord) -> None:
        before(round_ + 1)

    server = DistroStrategy(**{"round_timeout": 0.3, "start_timeout": 1.0, "min_train_nodes": 1} | options)
    server.start(grid, big_model(), rounds, evaluate_fn=evaluate)
    return server


def kinds(server: DistroStrategy, client: str, round_: int) -> set[str]:
    """What went down to a member in a round of training."""
    return {
        entry.kind for entry, _ in server.ledger
        if (entry.client, entry.round, entry.direction) == (client, round_, "down") and entry.kind != "evaluation"
    }  # fmt: skip


@pytest.mark.parametrize("where", ["in training", "in upload"])
def test_a_node_that_dies_costs_its_own_update_and_nothing_else(tmp_path: Path, where: str) -> None:
    """The rest is the mean over those who are left, with weights that add up to one."""
    if where == "in training":
        dies = {"drop": lambda message, node_id: node_id == 102 and message.metadata.group_id == "2"}
    else:

        def cut(reply: Message, node_id: int) -> Message:
            if node_id == 102 and reply.metadata.group_id == "2":
                del reply.content["metrics"]
            return reply

        dies = {"tamper": cut}
    server = serve(ChurnGrid(tmp_path / "a", **dies), 4)
    history = server.progress.history()
    assert [len(record.left_out) for record in history] == [0, 1, 0, 0]
    assert server.replica.version == 4
    grid = ChurnGrid(tmp_path / "b")

    def leaves_out(round_: int) -> None:
        taken = [record.asked - len(record.left_out) for record in history]
        grid.away = {102} if round_ <= 4 and taken[round_ - 1] == 3 else set()

    assert torch.equal(server.replica.values, serve(grid, 4, leaves_out).replica.values)


def test_a_node_that_is_away_between_rounds_is_sent_what_it_lacks(tmp_path: Path) -> None:
    grid = ChurnGrid(tmp_path)

    def before(round_: int) -> None:
        grid.away = {102} if round_ in (2, 3) else set()

    server = serve(grid, 5, before)
    assert [record.asked for record in server.progress.history()] == [4, 3, 3, 4, 4]
    assert not any(record.left_out for record in server.progress.history())
    assert kinds(server, "client-1", 4) == {"update"}
    once = server.ledger.total(client="client-0", round=4, direction="down")
    assert server.ledger.total(client="client-1", round=4, direction="down") > 1.5 * once
    assert server.progress.held_out[5]["client-1"] == server.progress.held_out[5]["client-0"]


@pytest.mark.parametrize("log", ["short", "pruned"])
def test_one_who_joins_at_round_5_is_served_in_one_go_and_by_deltas_from_then_on(tmp_path: Path, log: str) -> None:
    grid = ChurnGrid(tmp_path, nodes=3)
    server = DistroStrategy(round_timeout=0.3, start_timeout=1.0)

    def before(round_: int, arrays: ArrayRecord) -> None:
        if round_ == 4:
            grid.add_node({"partition-id": 3, "num-partitions": 4, "simulation": True})
            if log == "pruned":
                server.courier.downlink.log.prune(0)

    server.start(grid, big_model(), 7, evaluate_fn=before)
    assert [record.asked for record in server.progress.history()] == [3, 3, 3, 3, 4, 4, 4]
    assert not any(record.left_out for record in server.progress.history())
    assert kinds(server, "client-3", 5) == ({"update"} if log == "short" else {"keyframe"})
    assert kinds(server, "client-3", 6) == kinds(server, "client-3", 7) == {"update"}
    assert server.courier.downlink.keyframes_sent == (log == "pruned")
    sizes = [server.ledger.total(client="client-3", round=round_, direction="down") for round_ in (5, 6, 7)]
    assert sizes[0] > 2 * sizes[1]
    assert sizes[1] == pytest.approx(server.ledger.total(client="client-0", round=6, direction="down"), abs=40)


@pytest.mark.parametrize("log", ["short", "pruned"])
def test_one_who_comes_back_with_an_empty_folder(tmp_path: Path, log: str) -> None:
    """It is thought to hold a version, says that it does not, and is served within the round."""
    grid = ChurnGrid(tmp_path)
    server = DistroStrategy(round_timeout=0.3, start_timeout=1.0)

    def before(round_: int, arrays: ArrayRecord) -> None:
        if round_ == 4:
            shutil.rmtree(grid.state_dir(102))
            if log == "pruned":
                server.courier.downlink.log.prune(0)

    server.start(grid, big_model(), 7, evaluate_fn=before)
    assert not any(record.left_out for record in server.progress.history())
    assert server.courier.downlink.keyframes_sent == (log == "pruned")
    assert kinds(server, "client-1", 6) == {"update"}
    assert not server.progress.drifts
    assert server.progress.held_out[7]["client-1"] == server.progress.held_out[7]["client-0"]


# --- drift ----------------------------------------------------------------------------------------------


def test_a_snapshot_that_changed_is_replaced_and_counted(tmp_path: Path) -> None:
    grid = ChurnGrid(tmp_path / "members")

    def corrupt(round_: int) -> None:
        if round_ == 4:
            (path,) = grid.state_dir(102).glob("*/snapshot-*")
            replica = Replica.from_keyframe(server_agreement(), parse_frame(path.read_bytes()))
            replica.values[:3] += 0.1
            path.write_bytes(replica.keyframe(0).to_bytes())

    def server_agreement() -> Any:
        return made[0].replica.agreement

    made: list[DistroStrategy] = []
    with EventWriter(tmp_path / "events.jsonl") as events, pytest.MonkeyPatch.context() as patch:
        patch.setattr("distro_fed.clients.replica_store.SNAPSHOT_EVERY", 2)
        server = DistroStrategy(round_timeout=0.3, start_timeout=1.0, events=events)
        made.append(server)
        server.start(grid, big_model(), 6, evaluate_fn=lambda round_, _: corrupt(round_ + 1))
    assert server.progress.drifts == {"client-1": 1}
    (drift,) = [event for event in read_events(tmp_path / "events.jsonl")[0] if event["event"] == "drift"]
    assert (drift["round"], drift["client"], drift["version"]) == (4, "client-1", 3)
    assert kinds(server, "client-1", 4) == {"update", "keyframe"}
    assert not any(record.left_out for record in server.progress.history())
    assert server.progress.held_out[6]["client-1"] == server.progress.held_out[6]["client-0"]


def test_values_that_change_in_memory_are_replaced_and_counted(tmp_path: Path) -> None:
    """Here by a training function that writes into the replica itself."""
    from distro_fed.clients.replica_store import ReplicaStore

    stores: list[ReplicaStore] = []
    original = ReplicaStore.bring_to

    def bring_to(self: ReplicaStore, request: Any) -> Replica:
        stores.append(self)
        return original(self, request)

    def train(model: Any, info: Any) -> Any:
        result = shift_train(model, info)
        if info.round == 2 and partition(info) == 3:
            stores[-1]._replica.values.neg_()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicaStore, "bring_to", bring_to)
        client = PrivateClient(big_model, train, norm_evaluate, state_dir=str(tmp_path))
        grid = LocalGrid(client.app(), 4, run_config={"compressor": "quantized"})
        server = DistroStrategy(round_timeout=0.3)
        server.start(grid, big_model(), 4)
    # the four share one store, and are asked before the first of them is served
    assert server.progress.drifts == {f"client-{index}": 1 for index in range(4)}
    assert server.courier.downlink.keyframes_sent == 4
    assert not any(record.left_out for record in server.progress.history() if record.round != 2)
    assert len(set(server.progress.held_out[4].values())) == 1
    expected = float(server.replica.values.square().sum())
    assert server.progress.held_out[4]["client-0"] == pytest.approx(expected, rel=1e-5)


def test_other_initial_values_are_a_drift_at_once(tmp_path: Path) -> None:
    client = PrivateClient(lambda: make_model(seed=99), shift_train, norm_evaluate, state_dir=str(tmp_path))
    server = DistroStrategy(round_timeout=0.3)
    server.start(LocalGrid(client.app(), 2, run_config={"compressor": "quantized"}), make_model(), 3)
    assert server.progress.drifts.total() >= 1
    assert not any(record.left_out for record in server.progress.history())
