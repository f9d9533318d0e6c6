"""Saves a run after its rounds, and goes on with one that broke off.

The state is saved after a round has advanced the replica and before the next round's messages are made. So no member
ever holds a version that the server has not saved, as long as it saves every round. With ``save-rounds`` above 1
members may be ahead of a checkpoint, and each of these is sent a full state then.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from distro_fed.errors import CheckpointError, SettingsError
from distro_fed.replica import Replica, UpdateLog
from distro_fed.reporting.events import finite_or_null
from distro_fed.settings import RunSettings
from distro_fed.strategies.checkpoint import Checkpoint, write_checkpoint
from distro_fed.update import parse_frames

if TYPE_CHECKING:
    import torch

    from distro_fed.agreement import Agreement
    from distro_fed.strategies.distro import DistroStrategy
    from distro_fed.strategies.run_state import RunState

log = logging.getLogger("flwr")

#: settings that a resume may change: they name places, or say how long, for whom and what to tell, not what is computed
MAY_DIFFER = frozenset({
    "run-name", "run-dir", "resume-from-checkpoint", "save-rounds", "preset", "num-server-rounds", "round-timeout",
    "start-timeout", "stage-timeout", "quorum", "min-train-nodes", "min-available-nodes", "evaluate-every", "report-to",
    "metrics-port", "metrics-host", "allow-download", "device", "threads", "local-processes", "gradient-checkpointing",
    "secure-folder",
})  # fmt: skip
#: in a checkpoint, with the turn behind it if that is not the first
_RESIDUAL = "residual"
_RESULTS = ("train_metrics_clientapp", "evaluate_metrics_serverapp")


class Saver:
    """Writes checkpoints of a run.

    Parameters
    ----------
    folder : Path
        Of the checkpoint; this run's alone.
    every : int
        Rounds from one to the next; at least 1.
    settings : mapping
        Of the run, flat: a resume must have the same.
    """

    def __init__(self, folder: Path, every: int = 1, settings: Mapping[str, Any] | None = None) -> None:
        self.folder, self._every, self.settings = folder, every, dict(settings or {})

    def round_done(self, strategy: DistroStrategy, state: RunState, round_: int, rounds: int) -> None:
        """Save if it is time to."""
        state.done = round_
        if round_ % self._every == 0 or round_ == rounds:
            self.save(strategy, state)

    def save(self, strategy: DistroStrategy, state: RunState) -> None:
        """Save what has been reached, after ``state.done`` rounds.

        Raises
        ------
        OSError
            The checkpoint before is whole then: the run can be resumed from it when there is space again.
        """
        facts = _facts(strategy, state) | {"settings": self.settings, "options": _options(strategy)}
        clean = {key: finite_or_null(value) for key, value in facts.items()}
        state.courier.traffic.note_in(write_checkpoint(self.folder, state.done, clean, _tensors(state)))


def check_settings(saved: Checkpoint, settings: Mapping[str, Any]) -> None:
    """Compare the settings of a run that broke off with those of the one that is to go on with it.

    Raises
    ------
    CheckpointError
        Settings that change what is computed differ; the message lists them.
    """
    _check_same(saved, _with_later_settings(saved.facts["settings"], settings), settings)


def _check_same(saved: Checkpoint, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    different = [
        f"{key}: {there.get(key, '(none)')!r} then, {here.get(key, '(none)')!r} now"
        for key in sorted(there.keys() | here.keys())
        if key not in MAY_DIFFER and there.get(key) != here.get(key)
    ]
    if different:
        raise CheckpointError(
            f"{saved.traffic.parent} is of a run with other settings: {'; '.join(different)}. Resume it with those "
            "that it began with, or start a new run"
        )


def _with_later_settings(there: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings, and of those that a later release has added the defaults: they are what the run was done with."""
    added = settings.keys() - there.keys()
    try:
        defaults = RunSettings.from_run_config(there).flat() if added else {}
    except SettingsError:  # a setting that this release does not know any more: the comparison names it
        defaults = {}
    return {**{key: defaults[key] for key in added if key in defaults}, **there}


def run_id(saved: Checkpoint) -> int:
    """Id of the Flower run that a run began in."""
    return int(saved.facts["run-id"])


def saved_replica(saved: Checkpoint, agreement: Agreement) -> Replica:
    """The replica as it was.

    Raises
    ------
    CheckpointError
        Model, tensors or compressors are not those of the run.
    """
    facts = saved.facts
    if facts["run"] != agreement.run.hex():
        mine, there = agreement.facts(), facts["agreement"]
        different = [f"{key}: {there[key]} then, {mine[key]} now" for key in mine if mine[key] != there[key]]
        raise CheckpointError(f"{saved.traffic.parent} is of another run: {'; '.join(different)}")
    expected = agreement.keyframe_space(facts["version"]).numel - agreement.layout.numel
    found = len(saved.tensors.get("memory", ()))
    if found != expected:
        raise CheckpointError(
            f"{saved.traffic.parent} remembers {found} values of its updates, and {agreement.uplink.describe()} needs "
            f"{expected}: another release wrote it; start a new run"
        )
    return Replica(
        agreement, saved.tensors["values"], facts["version"], bytes.fromhex(facts["chain"]), saved.tensors.get("memory")
    )


def restore(strategy: DistroStrategy, state: RunState, saved: Checkpoint) -> None:
    """Put a run that is about to start into the state that was saved."""
    facts, tensors = saved.facts, saved.tensors
    _check_same(saved, facts["options"], _options(strategy))
    if strategy.saver is not None:  # a run that is not saved any more has nobody who knows its settings
        check_settings(saved, strategy.saver.settings)
    strategy.members.restore(facts["members"])
    state.courier.restore(facts["courier"])
    frames = parse_frames(tensors["log"].numpy().tobytes()) if "log" in tensors else []
    state.courier.downlink.log = UpdateLog(facts["log-start"], [frame.to_bytes() for frame in frames])
    state.courier.traffic.restore(facts["traffic"])
    state.courier.traffic.take_notes(saved.traffic)
    state.progress.restore(facts["progress"])
    state.outer_step.average = tensors.get("momentum")
    state.residuals = {
        int(name.removeprefix(_RESIDUAL) or 0): one for name, one in tensors.items() if name.startswith(_RESIDUAL)
    }
    if state.scales is not None:
        state.scales.restore(facts.get("scales", {}))  # a run that an older release began has measured none
    state.done = facts["done"]
    for name in _RESULTS:
        for round_, metrics in facts["results"][name]:
            getattr(state.result, name)[round_] = MetricRecord({key: _number(value) for key, value in metrics.items()})
    state.progress.resumed(state.done, state.replica.version)


def _facts(strategy: DistroStrategy, state: RunState) -> dict[str, Any]:
    replica, agreement, courier = state.replica, state.replica.agreement, state.courier
    return {
        "done": state.done,
        "run-id": str(agreement.run_id),
        "run": agreement.run.hex(),
        "agreement": agreement.facts(),
        "version": replica.version,
        "chain": replica.chain.hex(),
        "log-start": courier.downlink.log.start_version,
        "members": strategy.members.to_json(),
        "courier": courier.to_json(),
        "traffic": courier.traffic.to_json(),
        "progress": state.progress.to_json(),
        "scales": None if state.scales is None else state.scales.to_json(),
        "results": {name: _plain(state.result, name) for name in _RESULTS},
    }


def _tensors(state: RunState) -> dict[str, torch.Tensor]:
    import torch

    frames = state.courier.downlink.log.frames_since(state.courier.downlink.log.start_version) or []
    tensors = {
        "values": state.replica.values,
        "memory": state.replica.memory,
        "momentum": state.outer_step.average,
        **{f"{_RESIDUAL}{turn or ''}": one for turn, one in state.residuals.items()},
        "log": torch.frombuffer(bytearray(b"".join(frames)), dtype=torch.uint8) if frames else None,
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _options(strategy: DistroStrategy) -> dict[str, Any]:
    """Options of a strategy that change what is computed and are no facts of its agreement."""
    return {
        "fraction-train": strategy.fraction_train,
        "weighted-by": strategy.weighted_by_key or "",
        "aggregation": strategy.aggregation,
        "outer-learning-rate": strategy.outer_learning_rate,
        "outer-momentum": strategy.outer_momentum,
        "outer-nesterov": strategy.outer_nesterov,
        "server-residual": strategy.server_residual,
        "scales": "own" if strategy.scale_rule is None else "common",
    }


def _number(value: Any) -> Any:
    """A metric as it was, but for an infinity: what JSON has no word for was saved as null."""
    if isinstance(value, list):
        return [_number(item) for item in value]
    return math.nan if value is None else value


def _plain(result: Result, name: str) -> list[list[Any]]:
    return [[round_, dict(metrics)] for round_, metrics in getattr(result, name).items()]
