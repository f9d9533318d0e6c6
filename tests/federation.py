"""A federation of tiny torch modules, for tests of strategy and clients: no transformers, no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distro_fed.clients import EvaluateResult, PrivateClient, RoundInfo, TrainResult
from distro_fed.compression import make_compressor
from distro_fed.compression.base import Compressor
from distro_fed.model.trainable import Trainable, trainable_full
from distro_fed.presets import SELECTING
from distro_fed.settings import RunSettings
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.secure_distro import SecureDistroStrategy
from distro_fed.transport.local_grid import LocalGrid

Train = Callable[[nn.Module, RoundInfo], TrainResult]


def make_model(dtype: torch.dtype = torch.float32, width: int = 5, seed: int = 0) -> Trainable:
    """Two linear maps; the same values for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).to(dtype)
    return trainable_full(model)


def partition(info: RoundInfo) -> int:
    return int(str(info.node_config["partition-id"]))


def shift_train(model: nn.Module, info: RoundInfo) -> TrainResult:
    """Move every weight by an amount of this client and round; as many examples as partition + 1."""
    generator = torch.Generator().manual_seed(1000 * info.round + partition(info))
    for parameter in model.parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return TrainResult(num_examples=partition(info) + 1, loss=1.0 / info.round)


def norm_evaluate(model: nn.Module, info: RoundInfo) -> EvaluateResult:
    del info
    total = sum(float(parameter.detach().float().square().sum()) for parameter in model.parameters())
    return EvaluateResult(loss=total, num_examples=2, tokens=4)


def run(
    *,
    rounds: int = 3,
    nodes: int = 4,
    train: Train = shift_train,
    compressor: Compressor | str = "dense",
    dtype: torch.dtype = torch.float32,
    run_config: dict[str, Any] | None = None,
    strategy: dict[str, Any] | None = None,
    state_dir: str = "",
    model: Callable[[], Trainable] | None = None,
    initial: Callable[[], Trainable] | None = None,
    kind: type[DistroStrategy] = DistroStrategy,
    **grid: Any,
) -> tuple[DistroStrategy, LocalGrid]:
    """Run a federation in this process; returns strategy and grid for a look at what happened."""
    coder = make_compressor(compressor) if isinstance(compressor, str) else compressor
    config = {"compressor": coder.name, "bits": getattr(coder, "bits", 1), **(run_config or {})}
    if coder.name in SELECTING:
        config["density"] = getattr(coder, "density", 1 / 64)
    if coder.name in ("subspace", "lowrank", "tracking", "tracking-topk"):
        config |= {"rank": getattr(coder, "rank", 1), "mode": "full"}
    if coder.name == "subspace":
        config |= {"final-rank": getattr(coder, "final_rank", 0), "basis-rounds": getattr(coder, "basis_rounds", 1),
                   "num-server-rounds": getattr(coder, "rounds", 1)}  # fmt: skip
    build = model or (lambda: make_model(dtype))
    client = PrivateClient(build, train, norm_evaluate, state_dir=state_dir)
    local_grid = LocalGrid(client.app(), nodes, run_config=config, **grid)
    options: dict[str, Any] = {"round_timeout": 0.3, "start_timeout": 0.3, "min_train_nodes": 1,
                               "min_available_nodes": 1, "min_evaluate_nodes": 1, **(strategy or {})}  # fmt: skip
    if issubclass(kind, SecureDistroStrategy):
        options = {"settings": RunSettings.from_run_config(config), "stage_timeout": 0.3, **options}
    server = kind(compressor=coder, **options)
    server.start(local_grid, initial() if initial else make_model(dtype), rounds)
    return server, local_grid
