"""Rounds of :class:`DistroStrategy` and of Flower's FedAvg in turn, each with the loop of its own."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from distro_fed.files import write_atomically
from distro_fed.settings import RunSettings
from distro_fed.strategies import DistroStrategy
from round_overhead_app.task import load_model

TIMEOUT = 3600.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = RunSettings.from_run_config(context.run_config)
    rounds, nodes = settings.federation.num_server_rounds, settings.federation.min_available_nodes
    arrays = ArrayRecord(load_model().state_dict())
    ours = DistroStrategy(compressor="dense", min_available_nodes=nodes, evaluate_every=0, start_timeout=TIMEOUT)
    ours.prepare(arrays, grid.run.run_id, rounds)
    theirs = FedAvg(min_available_nodes=nodes)
    seconds: dict[str, list[float]] = {"distro_fed": [], "fedavg": []}
    for round_ in range(1, rounds + 1):
        started = time.monotonic()
        messages = list(ours.configure_train(round_, ArrayRecord(), ConfigRecord(), grid))
        _, metrics = ours.aggregate_train(round_, ours.courier.exchange(grid, messages, TIMEOUT, round_))
        seconds["distro_fed"].append(time.monotonic() - started)
        if metrics is None or len(ours.members.names) != nodes:
            raise RuntimeError(f"round {round_} of DistroStrategy is without all {nodes} members")

        started = time.monotonic()
        plain = [
            Message(message.content, message.metadata.dst_node_id, "train.plain", group_id=str(round_))
            for message in theirs.configure_train(round_, arrays, ConfigRecord(), grid)
        ]
        replies = list(grid.send_and_receive(plain, timeout=TIMEOUT))
        averaged, _ = theirs.aggregate_train(round_, replies)
        seconds["fedavg"].append(time.monotonic() - started)
        if averaged is None or len(replies) != nodes:
            raise RuntimeError(f"round {round_} of FedAvg is without all {nodes} members")
        arrays = averaged
    write_atomically(Path(settings.run_dir) / "seconds.json", json.dumps(seconds))
