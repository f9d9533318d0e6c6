"""Peak memory of the server with many members: ``python benchmarks/server_memory.py [--json]``.

A stand-in for Flower's Grid answers every message of a training round with a freshly made reply of a random
update, so that nothing but the server's own memory is measured: the replica, the sum, and one reply. Figures are
in units of the model (4 bytes a trainable value).
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch
from flwr.app import ConfigRecord, Message

from distro_fed.compression import make_compressor
from distro_fed.compression.base import Compressor, Residual, RoundKey
from distro_fed.layout import Layout, TensorSpec
from distro_fed.strategies import DistroStrategy
from distro_fed.transport.flower_compat import SUPERLINK_NODE_ID, set_identity
from distro_fed.transport.records import Reply, Status, reply_records
from distro_fed.update import Kind


class Model:
    """Random values in the shape of a 135M-parameter Llama, or a part of it."""

    def __init__(self, values: int) -> None:
        rows = max(64, values // 576)
        self.layout = Layout([TensorSpec("weight", (rows, 576), kind="matrix")])

    def read(self) -> torch.Tensor:
        return torch.zeros(self.layout.numel)


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class AnsweringGrid:
    """Replies to each pushed message when it is pulled; notes the memory each time."""

    def __init__(self, strategy: DistroStrategy, nodes: int) -> None:
        self.strategy, self.nodes, self.peak = strategy, nodes, 0
        self.pushed: dict[str, Message] = {}
        self.body = b""
        self.run = Mock(run_id=1)

    def get_node_ids(self) -> list[int]:
        return list(range(101, 101 + self.nodes))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        keys = []
        for message in messages:
            key = f"{message.metadata.group_id}-{message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = key
            self.pushed[key] = message
            keys.append(key)
        return keys

    def pull_messages(self, keys: Iterable[str]) -> list[Message]:
        self.peak = max(self.peak, resident())
        request = self.pushed.pop(next(iter(keys)))
        replica = self.strategy.replica
        config = request.content.config_records["config"]
        update = replica.agreement.frame(
            Kind.CLIENT, int(str(config["server-round"])), replica.version, replica.chain, bytes(bytearray(self.body))
        )
        node_id = request.metadata.dst_node_id
        reply = Reply(Status.OK, f"member {node_id}", replica.version, update, {"num-examples": 1.0})
        set_identity(1, node_id)
        message = Message(reply_records(reply), reply_to=request)
        set_identity(1, SUPERLINK_NODE_ID)
        return [message]


def random_body(coder: Compressor, space: Layout) -> bytes:
    return coder.encode(torch.randn(space.numel) * 1e-3, space, 0)


def measure(compressor: str, values: int, nodes: int, rounds: int = 2) -> dict[str, Any]:
    set_identity(1, SUPERLINK_NODE_ID)
    coder = make_compressor(compressor, density=1 / 64)
    strategy = DistroStrategy(compressor=coder, fraction_evaluate=0.0)
    grid = AnsweringGrid(strategy, nodes)
    model = Model(values)
    grid.body = random_body(coder, coder.space(model.layout, RoundKey(seed=0, round=1)))
    before = resident()
    replica = strategy.prepare(model, 1, rounds)
    for round_ in range(1, rounds + 1):
        if coder.residual is not Residual.IN_COEFFICIENTS:  # another space in every round
            grid.body = random_body(coder, replica.agreement.space(replica.key(round_)))
        messages = list(strategy.configure_train(round_, Mock(), ConfigRecord(), grid))  # type: ignore[arg-type]
        replies = strategy.courier.exchange(grid, messages, 60.0, round_)  # type: ignore[arg-type]
        del messages
        strategy.aggregate_train(round_, replies)
    size = 4 * replica.agreement.layout.numel
    return {
        "compressor": coder.describe(),
        "members": nodes,
        "values": replica.agreement.layout.numel,
        "reply_bytes": len(grid.body),
        "peak_models_while_receiving": round((grid.peak - before) / size, 3),
        "limit_models": round(2 + len(grid.body) / size, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--values", type=float, default=135e6)
    parser.add_argument("--compressor", default="topk")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(arguments.compressor, int(arguments.values), arguments.members)
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:30} {value}")


if __name__ == "__main__":
    main()
