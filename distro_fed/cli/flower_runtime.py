"""A private SuperLink on this machine: started here, used by one run, and stopped with all it started."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from distro_fed.cli.processes import ProcessTree
from distro_fed.cli.run_config import Value, to_toml
from distro_fed.errors import FederationError

#: name of the SuperLink in Flower's own configuration file
CONNECTION = "local"
START_SECONDS = 90
COMMAND_SECONDS = 120

#: Flower, Ray and the hub ask nobody outside; one thread per client process, whose memory is kept for the next step
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
}


def use_environment_here() -> None:
    """Give this process what concerns torch and the hub, unless it is set already; call it before torch is loaded."""
    for variable in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        os.environ.setdefault(variable, ENVIRONMENT[variable])


class SuperLink:
    """Context manager around one ``flower-superlink`` process with a home of its own.

    The user's ``~/.flwr`` is neither read nor written. On leaving, every process that the SuperLink
    started, directly or not, is ended, and the home is removed.

    Parameters
    ----------
    environment : dict, optional
        More variables for all processes. They win over this process's own, and those over :data:`ENVIRONMENT`.

    Attributes
    ----------
    tree : ProcessTree or None
        The SuperLink and what it has started; None before the start.
    address : str
        Host and port.
    home : Path
        ``FLWR_HOME`` of the SuperLink and of commands.
    """

    #: arguments of ``flower-superlink`` besides host, port and database
    options: tuple[str, ...] = ()
    #: what Flower's configuration says about reaching it, besides the address
    connection: Mapping[str, Value] = MappingProxyType({})

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._extra = environment or {}
        self.tree: ProcessTree | None = None

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="distro-fed-"))
        scripts = str(Path(sys.executable).parent)  # flower-superexec, flwr-simulation, ... are found by name
        self.environment = {
            **ENVIRONMENT,
            **os.environ,
            **self._extra,
            "FLWR_HOME": str(self.home),
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        # Workers import the app from the SuperLink's working directory first, so it has to be an empty one.
        self._folder = self.home / "empty"
        self._folder.mkdir()
        self.log_path = self.home / "superlink.log"
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.tree is not None:
            self.tree.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def _start(self) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        config = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        config += to_toml({"address": self.address, **self.connection})
        (self.home / "config.toml").write_text(config, encoding="utf-8")
        command = ["flower-superlink", *self.options, "--isolation", "subprocess", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--database", str(self.home / "state.db")]
        self.tree = self._start_process(command, self.log_path)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            if not self.is_alive():
                raise FederationError(f"the local SuperLink ended at once:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise FederationError(f"the local SuperLink did not answer in {START_SECONDS} s:\n{self.log_tail()}")
            time.sleep(0.2)

    def _is_healthy(self) -> bool:
        # No proxy: the environment may name one, and this is the loopback interface.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.address}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _start_process(
        self, command: list[str], log: Path, *, folder: Path | None = None, home: Path | None = None
    ) -> ProcessTree:
        """Start one of Flower's programs with a folder and a ``FLWR_HOME`` of its own; ``log`` gets what it prints."""
        with log.open("ab") as file:
            return ProcessTree(self._popen(command, folder, home, stdout=file, stderr=subprocess.STDOUT))

    def is_alive(self) -> bool:
        """Whether the SuperLink still runs. Also notes the processes that it has started since the last call."""
        if self.tree is None:
            return False
        self.tree.look()
        return self.tree.root.poll() is None

    def log_tail(self, lines: int = 30) -> str:
        """Last lines of the SuperLink's own log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run ``flwr ARGUMENTS --format json`` and return its answer.

        Raises
        ------
        FederationError
            If Flower refuses the command.
        """
        command = ["flwr", *arguments, "--format", "json"]
        process = self._popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=COMMAND_SECONDS)
        except BaseException:
            process.kill()
            process.wait()
            raise
        try:
            answer: dict[str, Any] = json.loads(out)
        except ValueError:
            answer = {}
        if process.returncode != 0 or not answer.get("success"):
            reason = answer.get("error-message") or f"{out.decode(errors='replace')}\n{err.decode(errors='replace')}"
            raise FederationError(f"flwr {arguments[0]} failed: {reason.strip()}\n{self.log_tail()}")
        return answer

    def stream_log(self, run_id: str, path: Path) -> subprocess.Popen[bytes]:
        """Start to copy the log of a run to ``path``; the process ends when the run does."""
        with path.open("wb") as file:
            return self._popen(["flwr", "log", run_id, CONNECTION, "--stream"], stdout=file, stderr=file)

    def status(self, run_id: str) -> str:
        """Status of a run: ``pending``, ``starting``, ``running`` or ``finished:completed|failed|stopped``."""
        return str(self.flwr("ls", CONNECTION, "--run-id", run_id)["runs"][0]["status"])

    def _popen(
        self, command: list[str], folder: Path | None = None, home: Path | None = None, **streams: Any
    ) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal reaches this process alone, which then stops the others.
        program = shutil.which(command[0], path=self.environment["PATH"])
        if program is None:
            raise FederationError(f"{command[0]} is not installed here: pip install 'distro-fed[simulation]'")
        return subprocess.Popen(
            [program, *command[1:]],
            env={**self.environment, "FLWR_HOME": str(home or self.home)},
            cwd=folder or self._folder,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **streams,
        )


class LocalSuperLink(SuperLink):
    """A SuperLink with the simulation runtime."""

    options = ("--insecure", "--simulation")
    connection = MappingProxyType({"insecure": True})


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
