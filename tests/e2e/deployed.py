"""What end-to-end tests of a deployment share: one SuperLink with SuperNodes, and waiting for what happens."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from distro_fed.cli.deployment_runtime import Deployment, SuperNode
from distro_fed.cli.follow_run import start_run
from distro_fed.cli.processes import is_alive
from distro_fed.cli.run_config import FlowerApp, Value
from distro_fed.reporting.events import Event, read_events

ROOT = Path(__file__).parents[2]
LINEAR_APP = Path(__file__).parent / "linear_app"
#: longest wait for any one thing, on a machine that has much else to do
PATIENCE = 600.0

#: the fourth has the name and the data of the third
NAMES = {"bank": "bank", "clinic": "clinic", "school": "school", "twin": "school"}
DATA = {"bank": 1, "clinic": 2, "school": 3, "twin": 3}


class Federation:
    """A deployment whose organisations are those in :data:`NAMES`."""

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self.deployment, self.folder = deployment, folder
        self.linear = FlowerApp.load(LINEAR_APP)

    def gate(self, name: str) -> Path:
        folder = self.folder / "gates" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def node_config(self, name: str) -> dict[str, Value]:
        state, members = self.state(name), self.folder / "members" / name
        config: dict[str, Value] = {"name": NAMES[name], "data": DATA[name], "gate": str(self.gate(name))}
        return {**config, "state-dir": str(state), **({"secure-folder": str(members)} if members.exists() else {})}

    def state(self, name: str) -> Path:
        return self.folder / "states" / name

    def start(self, *names: str) -> None:
        """(Re)start SuperNodes with the configuration of now, and wait until they are connected."""
        nodes = [self.deployment.start_node(name, self.node_config(name)) for name in names]
        for node in nodes:
            node.wait_until_connected(PATIENCE)

    def stop(self, *names: str) -> None:
        """Let SuperNodes take their leave, so that nobody waits for them."""
        for name in names:
            if name in self.deployment.nodes:
                self.deployment.nodes[name].tree.root.terminate()
        for name in names:
            if name in self.deployment.nodes:
                self.deployment.nodes[name].tree.root.wait(PATIENCE)
                self.deployment.nodes[name].tree.stop()

    def kill(self, name: str) -> None:
        """A power cut at one organisation."""
        kill_tree(self.deployment.nodes[name])

    def run(self, name: str, app: FlowerApp | None = None, **settings: Value) -> Run:
        folder = self.folder / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        config: dict[str, Value] = {"run-dir": str(folder), "run-name": name, **given}
        return Run(self, folder, start_run(self.deployment, app or self.linear, config), config)


class Run:
    """A run and what its server app tells."""

    def __init__(self, federation: Federation, folder: Path, run_id: str, config: dict[str, Value]) -> None:
        self.federation, self.folder, self.id, self.config = federation, folder, int(run_id), config

    def events(self) -> list[Event]:
        return read_events(self.folder / "events.jsonl")[0]

    def wait_for(self, kind: str, **fields: Any) -> Event:
        """The first event of a kind whose fields have these values."""

        def found() -> Event | None:
            for event in self.events():
                if event["event"] == kind and all(event.get(key) == value for key, value in fields.items()):
                    return event
                if event["event"] == "run_failed" and kind != "run_failed":
                    raise AssertionError(f"the run failed: {event['error']}")
            return None

        return wait(found, f"{kind} {fields}, not among {self.events()[-8:]}\n{self.federation.deployment.log_tail()}")

    def figures(self) -> dict[str, Any]:
        """Figures of the linear app at the end of the run."""
        self.wait_for("run_finished")
        figures: dict[str, Any] = json.loads((self.folder / "figures.json").read_text())
        return figures

    def accepted(self) -> dict[int, list[str]]:
        """By round, names of the members whose updates are in; what a server took before it died is not."""
        found: dict[int, list[str]] = {}
        for event in self.events():
            if event["event"] == "resumed":
                found = {number: names for number, names in found.items() if number < event["round"]}
            if event["event"] == "reply" and event["accepted"]:
                found.setdefault(event["round"], []).append(event["client"])
        return found

    def seconds_of_a_round(self) -> float:
        """How long the slowest round took: what time limits of later runs are multiples of."""
        return max(float(event["seconds"]) for event in self.events() if event["event"] == "round_finished")

    def kill_server_app(self) -> None:
        """End the server app, and nothing else, without a warning."""
        tree = self.federation.deployment.tree
        assert tree is not None
        children = psutil.Process(tree.root.pid).children(recursive=True)
        apps = [child for child in children if "flwr-serverapp" in " ".join(child.cmdline())]
        assert apps, "no server app is running"
        for app in apps:
            app.kill()
        wait(lambda: not any(map(is_alive, apps)), "the server app lives on")


def wait(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return found


def kill_tree(node: SuperNode) -> None:
    node.tree.look()
    family = [psutil.Process(node.tree.root.pid), *psutil.Process(node.tree.root.pid).children(recursive=True)]
    for process in family:
        os.kill(process.pid, signal.SIGKILL)
    node.tree.root.wait(PATIENCE)
    wait(lambda: not any(map(is_alive, family)), "processes of a killed SuperNode live on")


def linear_app(module: str) -> ModuleType:
    """A module of the linear app, for a run of it in this process."""
    if str(LINEAR_APP) not in sys.path:
        sys.path.insert(0, str(LINEAR_APP))
    return importlib.import_module(f"linear_app.{module}")
