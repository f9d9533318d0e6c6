"""What the client processes of a machine share: one model a process, one update store a machine.

In a simulation one process plays many organisations in turn; in a deployment a process lives for one
message. Both find here what they need, loaded when the first message comes and not before.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context

from distro_fed.agreement import Agreement
from distro_fed.clients.data_source import follows_run_paths
from distro_fed.clients.node_overrides import with_node_overrides
from distro_fed.clients.participant import Participant
from distro_fed.clients.replica_store import ReplicaStore
from distro_fed.clients.residual_store import ResidualStore
from distro_fed.clients.secure_member import SecureMember, secure_folder
from distro_fed.clients.task import LocalTask, RoundInfo
from distro_fed.compression.configured import configured_compressors
from distro_fed.replica import Replica
from distro_fed.settings import RunSettings
from distro_fed.transport.records import Request

if TYPE_CHECKING:
    from distro_fed.model.trainable import Trainable

log = logging.getLogger("distro_fed")


class ProcessState:
    """Model, agreement and replica of the current run.

    Parameters
    ----------
    task : LocalTask
    settings : RunSettings or None
        None: read from Flower's ``run_config`` with every message.
    state_dir : str or None
        Overrides the setting ``state-dir``.
    """

    def __init__(self, task: LocalTask, settings: RunSettings | None, state_dir: str | None) -> None:
        self._task, self._settings, self._state_dir = task, settings, state_dir
        self._key = uuid.uuid4().hex
        self._run: _LoadedRun | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Flower's simulation pickles the app into its workers with every message; there it must find the
        # model that an earlier message has loaded
        return _in_this_process, (self._key, self._task, self._settings, self._state_dir)

    def settings(self, context: Context) -> RunSettings:
        """Settings of the run."""
        settings = self._settings.completed() if self._settings else RunSettings.from_run_config(context.run_config)
        if self._settings is None and not follows_run_paths(context.node_config):
            # whether this machine may download is for its owner to say, not for whoever starts a run
            allowed = context.node_config.get("allow-download") is True
            settings = replace(settings, model=replace(settings.model, allow_download=allowed))
        return with_node_overrides(settings, context.node_config)

    def name(self, context: Context) -> str:
        """The organisation's name; never raises, since replies about failures carry it."""
        try:
            name = self._task.name(context.node_config, self.settings(context))
        except Exception:
            name = ""
        return name or f"node-{context.node_id}"

    def round_info(self, request: Request, context: Context) -> RoundInfo:
        """What training and evaluation functions are told."""
        return RoundInfo(
            request.round,
            request.rounds,
            self.name(context),
            self.settings(context),
            context.node_config,
            request.extra,
            request.version,
            self._own_folder(context, request, "training"),
        )

    def secure_member(self, context: Context) -> SecureMember | None:
        """The member in secure aggregation; None if it has no files for it. Needs no model.

        Raises
        ------
        DistroFedError
            It has files, and they cannot be used.
        """
        folder = secure_folder(context.node_config, self.settings(context), self.name(context))
        return None if folder is None else SecureMember.from_folder(folder, context.run_id)

    def facts(self, context: Context) -> dict[str, str]:
        """Public facts of the run as this member sees it."""
        return self._load(context, None).agreement.facts()

    def participant(self, context: Context, request: Request) -> Participant:
        """The organisation that a message is for.

        In a resumed run its files are found by the id of the Flower run that the run began in.
        """
        run, settings = self._load(context, request.run_id or context.run_id), self.settings(context)
        residuals, folder = None, self._own_folder(context, request, "residuals")
        if folder is None and settings.compression.error_feedback:
            log.warning("error-feedback = true, but there is no state-dir to keep a residual in: going on without")
        if folder is None and settings.training.optimizer_state == "kept":
            log.warning("optimizer-state = 'kept', but there is no state-dir to keep it in: going on without")
        if folder is not None and settings.compression.error_feedback:
            member = self.secure_member(context)
            residuals = ResidualStore(folder, context.run_id, None if member is None else _was_summed(member))
        return Participant(self._task, run.trainable, run.agreement, run.replicas, residuals, run.buffers)

    def _own_folder(self, context: Context, request: Request, kind: str) -> Path | None:
        """Folder for one kind of thing that an organisation keeps during a run; None: nothing is kept."""
        run = self._load(context, request.run_id or context.run_id)
        # two nodes that call themselves the same are still two organisations
        own = f"{self.name(context)} {context.node_config.get('partition-id', context.node_id)}"
        return None if run.folder is None else run.folder / kind / _file_name(own)

    def _load(self, context: Context, run_id: int | None) -> _LoadedRun:
        """What belongs to a run; None: the one that is loaded, if there is one."""
        with self._lock:
            settings = self.settings(context)
            if run_id is None:
                run_id = self._run.wanted[0] if self._run is not None else context.run_id
            # members that share a process may want the model on another device or in another format
            wanted = (run_id, settings.model, settings.training.device)
            if self._run is None or self._run.wanted != wanted:
                self._run = None  # the model of the run before is freed first
                self._run = _LoadedRun(self._task, settings, run_id, self.folder(context))
            return self._run

    def folder(self, context: Context) -> Path | None:
        """Where this machine keeps what outlives a message; None: nothing is kept."""
        if self._state_dir is not None:
            return Path(self._state_dir) if self._state_dir else None
        chosen = context.node_config.get("state-dir", "")
        if not chosen and follows_run_paths(context.node_config):
            chosen = self.settings(context).state_dir
        return Path(str(chosen)).expanduser() if chosen else None


_STATES: dict[str, ProcessState] = {}


def _in_this_process(key: str, task: LocalTask, settings: RunSettings | None, state_dir: str | None) -> ProcessState:
    if key not in _STATES:
        _STATES[key] = ProcessState(task, settings, state_dir)
        _STATES[key]._key = key
    return _STATES[key]


class _LoadedRun:
    def __init__(self, task: LocalTask, settings: RunSettings, run_id: int, state_dir: Path | None) -> None:
        self.wanted = (run_id, settings.model, settings.training.device)
        trainable, base_digest = task.load(settings)
        uplink, downlink = configured_compressors(settings)
        self.trainable: Trainable = trainable
        self.agreement = Agreement(
            trainable.layout, uplink, downlink, settings.seed, base_digest, run_id, trainable.turns
        )
        self.buffers = {name: buffer.clone() for name, buffer in trainable.model.named_buffers()}
        self.folder = None if state_dir is None else state_dir / self.agreement.run.hex()
        self.replicas = ReplicaStore(Replica.initial(self.agreement, trainable.read().cpu()), self.folder)


def _was_summed(member: SecureMember) -> Callable[[int, int], bool]:
    """Whether what a member sent in a round of a Flower run is in that round's sum; a run may go on in another one."""

    def was_summed(run_id: int, round_: int) -> bool:
        return replace(member, run=run_id).survived(round_)

    return was_summed


def _file_name(name: str) -> str:
    """A file name for an organisation that no two organisations share, whatever the file system folds."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]
    return f"{safe}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
