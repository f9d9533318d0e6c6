"""A deployment on this machine: a SuperLink with TLS and node authentication, and SuperNodes that know nothing else.

Everything runs by Flower's own commands, with the same certificates, keys and node configurations as on machines of
their own.
"""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from distro_fed.cli.deployment_files import AUTHORITY, SERVER, SERVER_KEY, create_certificates, create_node_key
from distro_fed.cli.flower_runtime import CONNECTION, SuperLink, free_port
from distro_fed.cli.processes import ProcessTree, stop_together
from distro_fed.cli.run_config import Value, to_toml
from distro_fed.errors import FederationError
from distro_fed.files import write_atomically

CERTIFICATES, ORGANISATIONS = "certificates", "organisations"
NODE_CONFIG, NODE_LOG, STATE = "node.toml", "supernode.log", "state"
CONNECT_SECONDS = 180
#: commands that register a key at the same time
REGISTRATIONS = 2

#: what a SuperNode logs once the SuperLink has let it in
_CONNECTED = "SuperNode ID:"


class SuperNode:
    """One organisation's ``flower-supernode`` process.

    Attributes
    ----------
    name : str
    folder : Path
        Its key, configuration, log and state; also where it runs.
    tree : ProcessTree
        The SuperNode and what it has started.
    """

    def __init__(self, name: str, folder: Path, tree: ProcessTree, log_start: int) -> None:
        self.name, self.folder, self.tree = name, folder, tree
        self._log_start = log_start

    @property
    def log(self) -> str:
        """What it has printed since it was started."""
        with (self.folder / NODE_LOG).open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def wait_until_connected(self, seconds: float = CONNECT_SECONDS) -> int:
        """Wait until the SuperLink has let it in; returns its node id.

        Raises
        ------
        FederationError
            It has ended, or the time is up; with the end of its log.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = self.tree.root.poll() is not None
            lines = [line for line in self.log.splitlines() if _CONNECTED in line]
            if lines:
                return int(lines[-1].split(_CONNECTED)[1])
            if ended or time.monotonic() > deadline:
                how = "ended" if ended else f"was not connected after {seconds:g} s"
                tail = "\n".join(self.log.splitlines()[-15:])
                raise FederationError(f"SuperNode {self.name!r} {how}:\n{tail}")
            time.sleep(0.1)


class Deployment(SuperLink):
    """Context manager: a SuperLink at first, to which SuperNodes are added.

    On leaving, all processes are ended, SuperNodes first. Certificates, keys, node configurations, states and the
    SuperNodes' logs stay in the folder.

    Parameters
    ----------
    folder : Path
        Gets ``certificates/`` and ``organisations/<name>/``.
    environment : dict, optional
        As of :class:`~distro_fed.cli.flower_runtime.SuperLink`.

    Attributes
    ----------
    nodes : dict of str to SuperNode
        By name; those that were started last.
    """

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        super().__init__(environment)
        self.folder = folder.resolve()
        self.certificates = self.folder / CERTIFICATES
        self.authority = self.certificates / AUTHORITY
        self.nodes: dict[str, SuperNode] = {}
        self._trees: list[ProcessTree] = []
        self.options = (
            *("--ssl-ca-certfile", str(self.authority)),
            *("--ssl-certfile", str(self.certificates / SERVER)),
            *("--ssl-keyfile", str(self.certificates / SERVER_KEY)),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        )
        self.connection = {"root-certificates": str(self.authority)}

    def _start(self) -> None:
        if not (self.certificates / SERVER).exists():
            create_certificates(self.certificates, [])
        super()._start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_together(self._trees)
        super().__exit__(kind, error, trace)

    def _is_healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(f"https://{self.address}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def is_alive(self) -> bool:
        """Whether the SuperLink still runs. Also notes the processes that were started since the last call."""
        for tree in self._trees:
            tree.look()
        return super().is_alive()

    def organisation(self, name: str) -> Path:
        """Folder of an organisation; made, with its node key, if it is not there."""
        folder = self.folder / ORGANISATIONS / name
        if not (folder / f"{name}.key").exists():
            create_node_key(folder, name)
        return folder

    def register(self, names: Sequence[str]) -> None:
        """Let the SuperNodes of these organisations in, by their public keys."""
        keys = [self.organisation(name) / f"{name}.pub" for name in names]
        with ThreadPoolExecutor(REGISTRATIONS) as threads:
            list(threads.map(lambda key: self.flwr("supernode", "register", str(key), CONNECTION), keys))

    def start_node(
        self,
        name: str,
        node_config: Mapping[str, Value],
        *,
        authority: Path | None = None,
        superlink: str | None = None,
    ) -> SuperNode:
        """Start the SuperNode of an organisation; returns at once.

        Parameters
        ----------
        name : str
        node_config : mapping
            ``name`` and ``state-dir`` are added if they are not given.
        authority : Path, optional
            Certificate that it trusts, if not the deployment's own.
        superlink : str, optional
            Address that it connects to, if not the deployment's own.
        """
        folder = self.organisation(name)
        config = {"name": name, "state-dir": str(folder / STATE), **node_config}
        write_atomically(folder / NODE_CONFIG, to_toml(config))
        log = folder / NODE_LOG
        start = log.stat().st_size if log.exists() else 0
        command = ["flower-supernode", "--superlink", superlink or self.address]
        command += ["--root-certificates", str(authority or self.authority)]
        command += ["--auth-supernode-private-key", str(folder / f"{name}.key")]
        command += ["--node-config", str(folder / NODE_CONFIG), "--host", "127.0.0.1", "--port", str(free_port())]
        home = self.home / name
        home.mkdir(exist_ok=True)
        tree = self._start_process(command, log, folder=folder, home=home)
        self._trees.append(tree)
        node = self.nodes[name] = SuperNode(name, folder, tree, start)
        return node

    def start_nodes(self, configs: Mapping[str, Mapping[str, Value]]) -> None:
        """Register organisations, start their SuperNodes, and wait until all of them are connected."""
        self.register(list(configs))
        for node in [self.start_node(name, config) for name, config in configs.items()]:
            node.wait_until_connected()
