"""A federation whose server can be stopped at any point of a run, and be gone on with by another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from distro_fed.clients import PrivateClient
from distro_fed.compression import make_compressor
from distro_fed.compression.base import Compressor
from distro_fed.model.trainable import Trainable
from distro_fed.reporting.events import EventWriter
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.checkpoint import read_checkpoint
from distro_fed.strategies.resume import Saver
from distro_fed.transport.local_grid import LocalGrid
from tests.federation import make_model, norm_evaluate, shift_train


class Killed(BaseException):
    """Nothing in the package catches it, as nothing survives a SIGKILL."""


class Points:
    """Counts the points at which a server can be stopped, and stops it at one of them."""

    def __init__(self, stop_at: int = -1) -> None:
        self.passed: list[str] = []
        self._stop_at = stop_at

    def __call__(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) - 1 == self._stop_at:
            raise Killed(name)


class WatchedGrid(LocalGrid):
    """Has a point before and after each push and each reply."""

    def __init__(self, *args: Any, points: Points, **options: Any) -> None:
        self._point = points
        super().__init__(*args, **options)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._point("before a push")
        pushed = super().push_messages(messages)
        self._point("after a push")
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._point("before a reply")
        replies = super().pull_messages(message_ids)
        self._point("after a reply")
        return replies


class Federation:
    """Members that keep their files, and a server that may come and go.

    Parameters
    ----------
    folder : Path
        ``run`` of the server and ``members`` (or nothing at all, if they are stateless).
    """

    def __init__(
        self,
        folder: Path,
        compressor: str | Compressor = "quantized",
        *,
        rounds: int = 3,
        nodes: int = 3,
        stateless: bool = False,
        run_config: dict[str, Any] | None = None,
        strategy: dict[str, Any] | None = None,
        model: Callable[[], Trainable] = make_model,
        kind: type[DistroStrategy] = DistroStrategy,
    ) -> None:
        coder = make_compressor(compressor, density=0.2, bits=2, rank=1) if isinstance(compressor, str) else compressor
        self.run, self.members = folder / "run", "" if stateless else str(folder / "members")
        self.compressor, self.rounds, self.nodes, self.model, self.kind = coder, rounds, nodes, model, kind
        self.config: dict[str, Any] = {"compressor": coder.name, "bits": 2, "density": 0.2, **(run_config or {})}
        if coder.name in ("subspace", "lowrank", "tracking", "tracking-topk"):
            self.config |= {"rank": 1, "mode": "full"}
        self.options = {
            "round_timeout": 1.0, "start_timeout": 0.3, "min_train_nodes": 1, "min_available_nodes": 1,
            "min_evaluate_nodes": 1, **(strategy or {}),
        }  # fmt: skip
        self.flower_run = 2**64 - 1  # ids are unsigned
        self.grids: list[LocalGrid] = []
        self.node_configs: list[dict[str, Any]] = []

    def app(self) -> Any:
        return PrivateClient(self.model, shift_train, norm_evaluate, state_dir=self.members).app()

    def grid(self, points: Points) -> LocalGrid:
        self.flower_run -= 1
        grid = WatchedGrid(
            self.app(), self.nodes, run_config=self.config, run_id=self.flower_run, points=points,
            node_configs=self.node_configs,
        )  # fmt: skip
        self.grids.append(grid)
        return grid

    @property
    def bytes_on_the_wire(self) -> int:
        return sum(sum(grid.bytes_down.values()) + sum(grid.bytes_up.values()) for grid in self.grids)

    def serve(
        self, points: Points | None = None, *, resume: bool = False, every: int = 1, **options: Any
    ) -> DistroStrategy:
        """One server process, from its start to its end or to where it is stopped."""
        points = points or Points()
        saved = read_checkpoint(self.run / "checkpoint") if resume else None
        with EventWriter(self.run / "events.jsonl") as events, pytest.MonkeyPatch.context() as patch:
            server = self.kind(
                compressor=self.compressor, events=events, saver=self._saver(every),
                resume_from=saved, **self.options | options,
            )  # fmt: skip
            watch(patch, points)
            server.start(self.grid(points), self.model(), self.rounds, evaluate_fn=lambda *_: points("between rounds"))
        return server

    def _saver(self, every: int) -> Saver:
        """A server app that has settings saves them too."""
        settings = self.options.get("settings")
        return Saver(self.run / "checkpoint", every, settings.flat() if settings else None)


def watch(patch: pytest.MonkeyPatch, points: Points) -> None:
    """Points inside of aggregating, and around every step that writes a checkpoint."""
    import os

    from distro_fed.strategies import resume
    from distro_fed.strategies.run_state import RunState

    def around(owner: Any, name: str, where: str, at: Callable[[str], None]) -> None:
        inner = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            at(f"before {where}")
            out = inner(*args, **options)
            at(f"after {where}")
            return out

        patch.setattr(owner, name, watched)

    def while_saving(name: str) -> None:
        if saving:
            points(name)

    def write_checkpoint(*args: Any) -> Path:
        saving.append(True)
        points("before a checkpoint")
        path = original(*args)
        points("after a checkpoint")
        saving.clear()
        return path

    saving, original = list[bool](), resume.write_checkpoint
    around(RunState, "advance", "the step", points)
    patch.setattr(resume, "write_checkpoint", write_checkpoint)
    around(os, "fsync", "bytes of a checkpoint are on the disk", while_saving)
    around(os, "replace", "the switch", while_saving)
    around(os, "unlink", "the old files go", while_saving)
