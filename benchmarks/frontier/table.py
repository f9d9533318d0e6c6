"""Finished runs as rows: the best learning rate of every pipeline, beside the better of the tuned baselines."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any, TypeVar

from distro_fed.reporting.references import allreduce_bf16, fedavg_full_bf16, ratio

Run = Mapping[str, Any]
_Name = TypeVar("_Name")
#: what is tuned for every pipeline, and therefore does not make another pipeline
TUNED = ("learning-rate", "outer-learning-rate")
BASELINES = ("R1", "R2")


@dataclass(frozen=True)
class Row:
    """One pipeline at its best learning rate.

    Attributes
    ----------
    task, pipeline, mode : str
    stateless : bool
        Clients keep nothing between rounds.
    steps, local_steps, clients : int
    participation : float
        Share of the clients that train in a round.
    seeds : list of int
    learning_rate : float
    outer_learning_rate : float
    loss, loss_spread : float
        Held-out loss, nats a token: mean, and standard deviation over seeds (0 for one seed).
    loss_best_baseline : float or None
        The better of the tuned R1 and R2 at the same steps and clients, on those of the seeds that it has.
    gap_nats : float or None
        Mean of the difference over these seeds.
    gap_seeds : list of int
        These seeds.
    bytes_up, bytes_down : float
        Of one client over the whole run.
    ratio_r1, ratio_r2 : float or None
        Bytes of the reference over the bytes of this pipeline, up and down together.
    command : str
        Runs it again.
    """

    task: str
    pipeline: str
    mode: str
    stateless: bool
    steps: int
    local_steps: int
    clients: int
    participation: float
    seeds: list[int]
    learning_rate: float
    outer_learning_rate: float
    loss: float
    loss_spread: float
    loss_best_baseline: float | None
    gap_nats: float | None
    gap_seeds: list[int]
    bytes_up: float
    bytes_down: float
    ratio_r1: float | None
    ratio_r2: float | None
    command: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def rows(runs: Iterable[Run]) -> list[Row]:
    """One row for each pipeline, task, number of steps and of clients; the best loss first within a task."""
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[(*_setting(run), run["pipeline"])].append(run)
    best = {key: best_rate(group) for key, group in groups.items()}
    found = [_row(group, _baseline(key, best)) for key, group in best.items()]
    return sorted(found, key=lambda row: (row.task, -row.steps, row.clients, row.loss))


def best_rate(group: Sequence[Run]) -> list[Run]:
    """Runs of the best learning rate of a pipeline."""
    variants: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in group:
        variants[tuple(run["settings"].get(name) for name in TUNED)].append(run)
    losses = {rate: {run["seed"]: run["loss"] for run in runs} for rate, runs in variants.items()}
    return sorted(variants[_lowest(losses)], key=lambda run: run["seed"])


def _lowest(losses: Mapping[_Name, Mapping[int, float]]) -> _Name:
    """Whose losses by seed are lowest, on the seeds that all have; without such, of those with the most seeds."""
    shared = set.intersection(*(set(one) for one in losses.values()))
    most = max(map(len, losses.values()))
    compete = [name for name, one in losses.items() if shared or len(one) == most]
    return min(compete, key=lambda name: mean(losses[name][seed] for seed in shared or losses[name]))


@dataclass(frozen=True, order=True)
class Tried:
    """One learning rate of one pipeline; a share of the clients may train in a round.

    Attributes
    ----------
    task, pipeline : str
    steps, clients : int
    participation, learning_rate, outer_learning_rate : float
    loss : float
        Held-out loss, nats a token: mean over seeds.
    seeds : int
        How many.
    """

    task: str
    pipeline: str
    steps: int
    clients: int
    participation: float
    learning_rate: float
    outer_learning_rate: float
    loss: float
    seeds: int


def sweep(runs: Iterable[Run]) -> list[Tried]:
    """Every learning rate tried."""
    tried: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for run in runs:
        if "learning-rate" in run["settings"]:
            task, *setting = _setting(run)
            rate = run["settings"]["learning-rate"], run["settings"].get("outer-learning-rate", 1.0)
            tried[(task, run["pipeline"], *setting, *rate)].append(run["loss"])
    return sorted(Tried(*key, mean(losses), len(losses)) for key, losses in tried.items())


def _setting(run: Run) -> tuple[Any, ...]:
    return run["task"], run["steps"], run["clients"], run["settings"].get("fraction-train", 1.0)


def _baseline(key: tuple[Any, ...], best: Mapping[tuple[Any, ...], list[Run]]) -> list[list[Run]]:
    """Tuned baselines of the same task, steps and clients; they train with all clients in every round."""
    return [
        group
        for (task, steps, clients, _, pipeline), group in best.items()
        if (task, steps, clients) == key[:3] and pipeline.startswith(BASELINES)
    ]


def _keeps_state(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("error-feedback", False)) or settings.get("optimizer-state", "fresh") == "kept"


def _row(runs: Sequence[Run], baselines: Sequence[Sequence[Run]]) -> Row:
    first = runs[0]
    settings = first["settings"]
    losses = {run["seed"]: run["loss"] for run in runs}
    every_step = first["runner"] in ("all-reduce", "torch-distributed", "distro-optimizer")
    local_steps = 1 if every_step else settings.get("local-steps", 10) if first["rounds"] else 0
    participation = settings.get("fraction-train", 1.0)
    up, down = mean(run["bytes_up"] for run in runs), mean(run["bytes_down"] for run in runs)
    known = {
        number: {run["seed"]: run["loss"] for run in group if run["seed"] in losses}
        for number, group in enumerate(baselines)
    }
    known = {number: one for number, one in known.items() if one}
    best = known[_lowest(known)] if known else None
    reference = None if best is None else mean(best.values())
    gap = None if best is None else mean(losses[seed] - loss for seed, loss in best.items())
    counts = {
        "parameters": first["parameters"], "clients": first["clients"],
        "rounds": first["steps"] / max(1, local_steps) * participation, "local_steps": local_steps,
    }  # fmt: skip
    sends = bool(up + down)
    return Row(
        task=first["task"],
        pipeline=first["pipeline"],
        mode=settings.get("mode", "full"),
        stateless=first["runner"] in ("product", "flower-fedavg") and not _keeps_state(settings),
        steps=first["steps"],
        local_steps=local_steps,
        clients=first["clients"],
        participation=participation,
        seeds=sorted(losses),
        learning_rate=settings.get("learning-rate", 0.0),
        outer_learning_rate=settings.get("outer-learning-rate", 1.0),
        loss=mean(losses.values()),
        loss_spread=stdev(losses.values()) if len(losses) > 1 else 0.0,
        loss_best_baseline=reference,
        gap_nats=gap,
        gap_seeds=sorted(best or ()),
        bytes_up=up,
        bytes_down=down,
        ratio_r1=ratio(fedavg_full_bf16(**counts).total, up + down) if sends else None,
        ratio_r2=ratio(allreduce_bf16(**counts).total, up + down) if sends else None,
        command=f"python -m benchmarks.frontier run benchmarks/frontier/grids/{first['grid']}.toml --only "
        + shlex.quote(first["pipeline"]),
    )
