"""Compressors whose space or basis is another one in every round, in whole federations."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from torch import nn

from distro_fed.clients import EvaluateResult, PrivateClient, RoundInfo, TrainResult
from distro_fed.compression.base import Compressor
from distro_fed.compression.lowrank import LowRank
from distro_fed.compression.quantized import Quantized
from distro_fed.compression.subspace import Subspace
from distro_fed.compression.tracking import Tracking
from distro_fed.compression.tracking_topk import TrackingTopK
from distro_fed.errors import SettingsError
from distro_fed.model.trainable import Trainable
from distro_fed.strategies import DistroStrategy
from distro_fed.transport.local_grid import LocalGrid
from tests.federation import make_model, run, shift_train

CODERS = [
    Subspace(1, bits=2, final_rank=2, rounds=5),
    Subspace(1, bits=2, basis_rounds=2, rounds=5),
    LowRank(2, bits=1),
    LowRank(1, bits=8),
    Tracking(1, bits=8),
    Tracking(2, bits=1, decay=0.5),
    TrackingTopK(2, density=0.25, value_bits=2, decay=0.5),
]
each = pytest.mark.parametrize("coder", CODERS, ids=lambda coder: coder.describe())


class Federation:
    """Keeps the replica of every member and of the server at every version."""

    def __init__(self, coder: Compressor, model: Callable[[], Trainable] = make_model, state_dir: str = "") -> None:
        self.members: dict[int, list[torch.Tensor]] = {}
        self.server: dict[int, torch.Tensor] = {}
        self.model, self.state_dir = model, state_dir
        self.strategy = DistroStrategy(
            compressor=coder, round_timeout=0.3, min_train_nodes=1, min_available_nodes=1, min_evaluate_nodes=1
        )
        self.config: dict[str, Any] = {
            "compressor": coder.name, "bits": getattr(coder, "bits", 1), "rank": getattr(coder, "rank", 1),
            "mode": "full", "final-rank": getattr(coder, "final_rank", 0),
            "basis-rounds": getattr(coder, "basis_rounds", 1), "num-server-rounds": 5,
            "basis-decay": getattr(coder, "decay", 0.0), "density": getattr(coder, "density", 0.0),
            "value-bits": getattr(coder, "value_bits", 1),
        }  # fmt: skip
        self.grid: LocalGrid | None = None

    def app(self) -> Any:
        def evaluate(model: nn.Module, info: RoundInfo) -> EvaluateResult:
            names = sorted(name for name, _ in model.named_parameters())
            values = torch.cat([model.get_parameter(name).detach().reshape(-1).clone() for name in names])
            self.members.setdefault(info.version, []).append(values)
            return EvaluateResult(0.0, 1, 1)

        return PrivateClient(self.model, shift_train, evaluate, state_dir=self.state_dir).app()

    def run(self, app: Any = None, after_round: Callable[[int], None] | None = None, **grid: Any) -> DistroStrategy:
        def look(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
            del arrays
            self.server[self.strategy.replica.version] = self.strategy.replica.values.clone()
            if after_round is not None:
                after_round(round_)
            return None

        self.grid = LocalGrid(app or self.app(), 2, run_config=self.config, **grid)
        initial = self.model() if self.model is in_turn else make_model()
        self.strategy.start(self.grid, initial, 5, evaluate_fn=look)
        for version, values in self.members.items():
            assert all(torch.equal(self.server[version], value) for value in values), version
        assert not any(
            "lacks" in item.reason for record in self.strategy.progress.history() for item in record.left_out
        )
        return self.strategy


@each
def test_members_stay_bit_for_bit_equal_to_the_server(coder: Compressor, tmp_path: Path) -> None:
    stateless, stateful = Federation(coder), Federation(coder, state_dir=str(tmp_path))
    assert stateless.run().replica.version == 5
    stateful.run()
    assert torch.equal(stateless.server[5], stateful.server[5])
    assert sorted(stateful.members) == [0, 1, 2, 3, 4, 5]
    assert len({values.numpy().tobytes() for values in stateful.server.values()}) == 6


@each
def test_a_skipped_round_does_not_upset_those_after_it(coder: Compressor, tmp_path: Path) -> None:
    federation = Federation(coder, state_dir=str(tmp_path))
    strategy = federation.run(drop=lambda message, node_id: message.metadata.group_id == "3")
    assert [record.skipped for record in strategy.progress.history()] == [False, False, True, False, False]
    assert strategy.replica.version == 4
    assert sorted(federation.members) == [0, 1, 2, 3, 4]


@each
def test_a_member_of_other_initial_values_starts_from_a_keyframe(coder: Compressor, tmp_path: Path) -> None:
    federation = Federation(coder, lambda: make_model(seed=99), str(tmp_path))
    strategy = federation.run()
    assert strategy.courier.downlink.keyframes_sent == 2


@each
def test_a_lost_folder_is_made_up_for(coder: Compressor, tmp_path: Path) -> None:
    """From round 3 on every process is new, and the folder of the rounds before is gone."""
    federation = Federation(coder, state_dir=str(tmp_path))

    def fresh(message: Message, context: Any) -> Message:
        return federation.app()(message, context)  # type: ignore[no-any-return]

    def lose(round_: int) -> None:
        if round_ == 2:
            for path in tmp_path.iterdir():
                shutil.rmtree(path)

    strategy = federation.run(fresh, lose)
    assert strategy.replica.version == 5


@each
def test_a_late_joiner_ends_at_the_same_bits(coder: Compressor) -> None:
    federation = Federation(coder)

    def join(round_: int) -> None:
        if round_ == 3 and federation.grid is not None:
            federation.grid.add_node({"partition-id": 2})

    strategy = federation.run(after_round=join)
    assert strategy.ledger.total(client="client-2", direction="up") > 0
    assert len(federation.members[5]) == 3


def test_a_late_joiner_far_behind_gets_the_memory_in_its_keyframe(tmp_path: Path) -> None:
    federation = Federation(LowRank(2, bits=8), state_dir=str(tmp_path))

    def join(round_: int) -> None:
        if round_ == 3 and federation.grid is not None:
            federation.strategy.courier.downlink.log.prune(0)
            federation.grid.add_node({"partition-id": 2})

    apps = {101: federation.app(), 102: federation.app()}

    def app(message: Message, context: Any) -> Message:
        if context.node_id not in apps:
            federation.state_dir = ""
            apps[context.node_id] = federation.app()
        return apps[context.node_id](message, context)  # type: ignore[no-any-return]

    strategy = federation.run(app, join)
    assert strategy.courier.downlink.keyframes_sent > 0
    assert len(federation.members[5]) == 3


def in_turn() -> Trainable:
    made = make_model()
    return Trainable(made.model, made.parameters, turns=[["0.weight", "1.bias"], ["1.weight", "0.bias"]])


def test_tensors_in_turn(tmp_path: Path) -> None:
    federation = Federation(Quantized(4), in_turn, str(tmp_path))
    strategy = federation.run(drop=lambda message, node_id: message.metadata.group_id == "3")
    assert strategy.replica.version == 4
    layout = strategy.replica.agreement.layout
    for version, turn in enumerate(({"0.weight", "1.bias"}, {"1.weight", "0.bias"}) * 2):
        change = federation.server[version + 1] - federation.server[version]
        moved = {spec.name for spec, where in layout.slices() if change[where].any()}
        assert moved == turn, version


def test_only_the_tensors_of_the_turn_are_trained() -> None:
    seen: list[set[str]] = []

    def train(model: nn.Module, info: RoundInfo) -> TrainResult:
        seen.append({name for name, parameter in model.named_parameters() if parameter.requires_grad})
        return shift_train(model, info)

    run(rounds=3, nodes=1, train=train, model=in_turn, compressor="quantized", initial=in_turn)
    assert seen == [{"0.weight", "1.bias"}, {"1.weight", "0.bias"}, {"0.weight", "1.bias"}]


def test_what_is_not_in_turn_waits_in_the_residual(tmp_path: Path) -> None:
    """Both halves arrive in the end, although every round sends one of them."""
    options: dict[str, Any] = {"rounds": 16, "nodes": 1, "train": steady, "compressor": Quantized(8)}
    dense = run(**options)[0].replica.values
    options |= {"model": in_turn, "initial": in_turn}
    without = run(**options)[0].replica.values
    kept = run(**options, state_dir=str(tmp_path), run_config={"error-feedback": True})[0].replica.values
    moved = (dense - make_model().read()).norm()
    assert (without - dense).norm() > 0.4 * moved
    assert (kept - dense).norm() < 0.1 * moved


def test_what_the_server_leaves_unsent_waits_for_the_turn_of_its_tensors() -> None:
    """``step = mean + residual of the turn; send Q(step); residual of the turn = step - what was sent``."""
    strategy = DistroStrategy(compressor=Quantized(1), server_residual=True)
    strategy.prepare(in_turn(), 1, 6)
    state = strategy.run_state
    residuals: dict[int, torch.Tensor] = {}
    for version in range(5):
        key = state.replica.key(version + 1)
        space = state.replica.agreement.space(key)
        mean = torch.randn(space.numel, generator=torch.Generator().manual_seed(version))
        step = mean + residuals.get(version % 2, torch.zeros(space.numel))
        before = state.replica.values.clone()
        assert state.advance(version + 1, mean) is not None
        sent = state.replica.agreement.analyse(state.replica.values - before, key)
        scales = [step[where].abs().mean() for _, where in space.slices()]
        expected = [step[where].sign() * scale for (_, where), scale in zip(space.slices(), scales, strict=True)]
        torch.testing.assert_close(sent, torch.cat(expected), rtol=1e-2, atol=1e-6)  # scales have 8 bits
        residuals[version % 2] = step - sent


def test_members_without_turns_are_told_apart() -> None:
    server, _ = run(rounds=1, nodes=2, compressor="quantized", initial=in_turn, strategy={"quorum": 0.5})
    assert {item.reason for item in server.progress.history()[0].left_out} == {"the node reports wrong-run"}


@pytest.mark.parametrize("options", [{"outer_momentum": 0.9}, {"compressor": LowRank(1)}])
def test_what_is_kept_from_one_round_to_the_next_does_not_go_with_turns(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="in turn"):
        DistroStrategy(**{"compressor": Quantized(1), **options}).prepare(in_turn(), 1, 2)


def steady(model: nn.Module, info: RoundInfo) -> TrainResult:
    """The same change in every round; it has full rank."""
    for index, parameter in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(index)
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator)
    return TrainResult(1, 1.0)


@pytest.mark.parametrize("bits", [1, 8])
def test_error_feedback_sends_in_the_end_what_a_projection_leaves_out(bits: int, tmp_path: Path) -> None:
    def distance(**options: Any) -> float:
        server, _ = run(rounds=16, nodes=2, train=steady, compressor=LowRank(1, bits), **options)
        return float((server.replica.values - dense).norm())

    dense = run(rounds=16, nodes=2, train=steady)[0].replica.values
    kept = distance(run_config={"error-feedback": True}, state_dir=str(tmp_path))
    assert kept < 0.55 * distance()


def test_up_and_down_must_have_one_rank() -> None:
    for up, down in ((LowRank(1), LowRank(2)), (Subspace(1), Subspace(1, final_rank=2, rounds=4))):
        strategy = DistroStrategy(compressor=up, downlink_compressor=down)
        with pytest.raises(SettingsError, match="different spaces: give both the same rank"):
            strategy.prepare(make_model(), 1, 4)
    DistroStrategy(compressor=LowRank(1, 1), downlink_compressor=LowRank(1, 8)).prepare(make_model(), 1, 4)


def test_schedules_that_differ_are_runs_that_differ() -> None:
    server = DistroStrategy(compressor=Subspace(1, final_rank=2, rounds=5), round_timeout=0.3, fraction_evaluate=0.0)
    config = {"compressor": "subspace", "mode": "full", "rank": 1, "final-rank": 2, "num-server-rounds": 4}
    server.start(LocalGrid(PrivateClient(make_model, shift_train).app(), 2, run_config=config), make_model(), 1)
    assert {item.reason for item in server.progress.history()[0].left_out} == {"the node reports wrong-run"}
