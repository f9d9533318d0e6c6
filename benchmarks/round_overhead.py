"""Wall time of a round against FedAvg's: ``python benchmarks/round_overhead.py [--json]``.

Training is trivial and the payload tiny, so what is measured is the way of a round through Flower: one process a
message in a deployment (a SuperLink and two SuperNodes on this machine, with TLS and node keys), Ray workers in the
simulation. Rounds of both take turns in one run, so that whatever else the machine does concerns both. The first round
of each is not counted: workers start in it. Ratios are of medians.

On the client's side both import torch; ours also imports this package and works out the update.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from distro_fed.cli.deployment_runtime import Deployment
from distro_fed.cli.flower_runtime import LocalSuperLink, SuperLink
from distro_fed.cli.follow_run import start_run
from distro_fed.cli.run_config import FlowerApp

APP = Path(__file__).parent / "round_overhead_app"
NODES = 2
LIMIT_SECONDS = 3600


def seconds_of_rounds(superlink: SuperLink, folder: Path, rounds: int, *arguments: str) -> dict[str, list[float]]:
    """Run the app; wall times of its rounds, by strategy."""
    settings = {"run-dir": str(folder), "num-server-rounds": rounds, "min-available-nodes": NODES}
    run_id = start_run(superlink, FlowerApp.load(APP), settings, arguments)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (folder / "seconds.json").exists():
        status = superlink.status(run_id)
        if status.startswith("finished") and not (folder / "seconds.json").exists():
            raise RuntimeError(f"the run ended as {status}:\n{superlink.log_tail()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"no result after {LIMIT_SECONDS} s")
        time.sleep(5)
    seconds: dict[str, list[float]] = json.loads((folder / "seconds.json").read_text())
    return seconds


def simulation(rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, LocalSuperLink() as superlink:
        arguments = ("--federation-config", f"num-supernodes={NODES} client-resources-num-cpus=1")
        return seconds_of_rounds(superlink, Path(folder), rounds, *arguments)


def deployment(rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, Deployment(Path(folder)) as superlink:
        superlink.start_nodes({f"node-{index}": {} for index in range(NODES)})
        return seconds_of_rounds(superlink, Path(folder), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("--simulation-rounds", type=int, default=40)
    parser.add_argument("--deployment-rounds", type=int, default=8)
    options = parser.parse_args()
    found: dict[str, object] = {}
    for name, measure, rounds in (
        ("simulation", simulation, options.simulation_rounds),
        ("deployment", deployment, options.deployment_rounds),
    ):
        seconds = measure(rounds)
        ours, theirs = (statistics.median(seconds[who][1:]) for who in ("distro_fed", "fedavg"))
        found |= {f"ratio_{name}": ours / theirs, f"seconds_{name}": ours, f"seconds_{name}_fedavg": theirs}
        if not options.json:
            print(f"{name:10}  {ours:7.3f} s a round, FedAvg {theirs:7.3f} s, ratio {ours / theirs:.2f}", flush=True)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
