"""Bytes and seconds of a run: every message of the topology over every link, and which of them the others wait for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from distro_fed.errors import SettingsError
from distro_fed.layout import Layout
from distro_fed.planner.codec import Codec
from distro_fed.planner.links import Link, Network
from distro_fed.planner.model_shapes import ModelShape
from distro_fed.planner.update_sizes import (
    EMPTY_REQUEST_BYTES,
    EVALUATION_REPLY_BYTES,
    frame_bytes,
    reply_bytes,
    request_bytes,
)
from distro_fed.reporting.references import Traffic, allreduce_bf16, distro_report, fedavg_full_bf16

Topology = Literal["server", "peer-to-peer", "hybrid"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is planned.

    Attributes
    ----------
    model : ModelShape
    mode : str
        ``"lora"`` or ``"full"``.
    layout : Layout
        Trainable tensors.
    uplink, downlink : Codec
        What codes an update of a node, and an aggregated update.
    network : Network
    topology : str
        ``"server"``: nodes send to one server and are sent the aggregated update. ``"peer-to-peer"``: every node sends
        its update to every other. ``"hybrid"``: every regional group has an aggregator; aggregators send the updates of
        their groups to each other, and the aggregated update to their members.
    local_steps, rounds : int
        Optimizer steps in a round, and rounds.
    """

    model: ModelShape
    mode: str
    layout: Layout
    uplink: Codec
    downlink: Codec
    network: Network
    topology: Topology
    local_steps: int
    rounds: int

    def __post_init__(self) -> None:
        for name, value in (("local steps", self.local_steps), ("rounds", self.rounds)):
            if value < 1:
                raise SettingsError(f"{name} = {value}; at least 1 is needed")
        if self.topology not in TOPOLOGIES:
            raise SettingsError(f"topology {self.topology!r}; choose one of {', '.join(TOPOLOGIES)}")
        if self.topology == "peer-to-peer" and len(self.network.nodes) < 2:
            raise SettingsError("a single node has no peers: use --nodes 2 or more, or --topology server")
        if self.topology == "hybrid" and not all(node.group for node in self.network.nodes):
            lonely = next(node.name for node in self.network.nodes if not node.group)
            raise SettingsError(f"{lonely} has no group: use --groups, or give every [[node]] a group")


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a round that everybody waits for.

    Attributes
    ----------
    what : str
        ``"compute"``, ``"downlink"``, ``"uplink"``, ``"exchange"`` (between aggregators) or ``"latency"``.
    where : str
        Name of the node, ``"server"``, or name of the aggregator.
    link : str
        Field of the :class:`~distro_fed.planner.links.Link` that limits it.
    seconds : float
    """

    what: str
    where: str
    link: str
    seconds: float

    def describe(self) -> str:
        """For a person: ``uplink of node 3``."""
        direction = {"down_mbit": "downlink of ", "up_mbit": "uplink of "}.get(self.link)
        if direction is None:
            return f"{'computing at' if self.what == 'compute' else 'latency of'} {self.where}"
        return direction + self.where


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and times of a scenario.

    Attributes
    ----------
    scenario : Scenario
    frame_up, frame_down : int
        Bytes of one update of a node, and of one aggregated update.
    per_round, per_run : Traffic
        Bytes of one node, in a round that trains, and in the whole run, with Flower's messages and the last evaluation.
    hub : Traffic or None
        Bytes of the server, or of the busiest aggregator, in a round. None if there is neither.
    stages : tuple of Stage
        What the round's time is made of, in order.
    seconds_down, seconds_up : float
        Slowest transfer of a round in each direction, of a node or of the server for all of its nodes.
    """

    scenario: Scenario
    frame_up: int
    frame_down: int
    per_round: Traffic
    per_run: Traffic
    hub: Traffic | None
    stages: tuple[Stage, ...]
    seconds_down: float
    seconds_up: float

    @property
    def seconds_round(self) -> float:
        """Seconds of one round."""
        return math.fsum(stage.seconds for stage in self.stages)

    @property
    def seconds_run(self) -> float:
        """Seconds of all rounds; evaluation is not counted."""
        return self.seconds_round * self.scenario.rounds

    @property
    def seconds_compute(self) -> float:
        """Seconds of a round that train."""
        return math.fsum(stage.seconds for stage in self.stages if stage.what == "compute")

    @property
    def bottleneck(self) -> Stage:
        """The longest stage."""
        return max(self.stages, key=lambda stage: stage.seconds)

    def describe_bottleneck(self) -> str:
        """For a person: ``uplink of node 3``, and how many nodes have no faster one."""
        slow, nodes = self.bottleneck, self.scenario.network.nodes
        speeds = {node.name: getattr(node, slow.link) for node in nodes}
        if slow.where not in speeds or slow.what == "latency":
            return slow.describe()
        worst = speeds[slow.where]
        alike = sum(speed >= worst if slow.what == "compute" else speed <= worst for speed in speeds.values()) - 1
        return slow.describe() + (f" ({alike} more alike)" if alike else "")

    def references(self) -> dict[str, Traffic]:
        """R1, R2 and R3 (:mod:`distro_fed.reporting.references`): bytes of one node in as many optimizer steps."""
        scenario = self.scenario
        methods = {"R1": fedavg_full_bf16, "R2": allreduce_bf16, "R3": distro_report}
        return {
            name: count(
                parameters=scenario.model.parameters,
                clients=len(scenario.network.nodes),
                rounds=scenario.rounds,
                local_steps=scenario.local_steps,
            )
            for name, count in methods.items()
        }


def make_plan(scenario: Scenario) -> Plan:
    """Work a scenario out.

    A node first receives, then trains, then sends; the time of a round is that of the slowest node. A server that sends
    to all nodes at once shares its link among them. Peers send and receive at the same time.
    """
    up, down = frame_bytes(scenario.uplink, scenario.layout), frame_bytes(scenario.downlink, scenario.layout)
    if scenario.topology == "peer-to-peer":
        return _peer_to_peer(scenario, up, down)
    return _through_hubs(scenario, up, down)


def _peer_to_peer(scenario: Scenario, up: int, down: int) -> Plan:
    nodes = scenario.network.nodes
    size = (len(nodes) - 1) * reply_bytes(up)
    slowest = max(nodes, key=lambda node: node.step_seconds)
    sender = max(nodes, key=lambda node: node.send_seconds(size))
    receiver = max(nodes, key=lambda node: node.receive_seconds(size))
    distant = max(nodes, key=lambda node: node.latency_ms)
    exchange = max(
        Stage("uplink", sender.name, "up_mbit", sender.send_seconds(size)),
        Stage("downlink", receiver.name, "down_mbit", receiver.receive_seconds(size)),
        key=lambda stage: stage.seconds,
    )
    return Plan(
        scenario=scenario,
        frame_up=up,
        frame_down=down,
        per_round=Traffic(size, size),
        per_run=Traffic(size * scenario.rounds, size * scenario.rounds),
        hub=None,
        stages=(_compute(slowest, scenario), exchange, _latency(distant, 1)),
        seconds_down=receiver.receive_seconds(size),
        seconds_up=sender.send_seconds(size),
    )


def _through_hubs(scenario: Scenario, up: int, down: int) -> Plan:
    """One server, or an aggregator for each group."""
    groups = [scenario.network.nodes] if scenario.topology == "server" else list(scenario.network.groups().values())
    sent, received = reply_bytes(up), request_bytes(down)
    between = (len(groups) - 1) * reply_bytes(down)
    paths, hub = [], Traffic(0, 0)
    for nodes in groups:
        name = "server" if scenario.topology == "server" else f"aggregator of {nodes[0].group}"
        paths += [_path(node, name, len(nodes), scenario, sent, received) for node in nodes]
        hub = max(hub, Traffic(len(nodes) * received + between, len(nodes) * sent + between), key=lambda hub: hub.total)
    critical = max(paths, key=lambda path: math.fsum(stage.seconds for stage in path))
    if between:
        critical += _exchange(scenario.network.server, between)
    rounds = scenario.rounds
    return Plan(
        scenario=scenario,
        frame_up=up,
        frame_down=down,
        per_round=Traffic(sent, received),
        # the first request has nothing to bring; a last one asks for an evaluation and brings the last update
        per_run=Traffic(rounds * sent + EVALUATION_REPLY_BYTES, rounds * received + EMPTY_REQUEST_BYTES),
        hub=hub,
        stages=critical,
        seconds_down=max(path[0].seconds for path in paths),
        seconds_up=max(path[2].seconds for path in paths),
    )


def _path(node: Link, hub: str, members: int, scenario: Scenario, sent: int, received: int) -> tuple[Stage, ...]:
    """What one node goes through in a round."""
    server = scenario.network.server
    down = max(
        Stage("downlink", node.name, "down_mbit", node.receive_seconds(received)),
        Stage("downlink", hub, "up_mbit", server.send_seconds(members * received)),
        key=lambda stage: stage.seconds,
    )
    up = max(
        Stage("uplink", node.name, "up_mbit", node.send_seconds(sent)),
        Stage("uplink", hub, "down_mbit", server.receive_seconds(members * sent)),
        key=lambda stage: stage.seconds,
    )
    return (down, _compute(node, scenario), up, _latency(node, 2))


def _exchange(server: Link, size: int) -> tuple[Stage, ...]:
    link = "up_mbit" if server.up_mbit <= server.down_mbit else "down_mbit"
    seconds = max(server.send_seconds(size), server.receive_seconds(size))
    return (
        Stage("exchange", "the aggregators", link, seconds),
        Stage("latency", "the aggregators", "latency_ms", server.latency_ms / 1000),
    )


def _compute(node: Link, scenario: Scenario) -> Stage:
    return Stage("compute", node.name, "step_seconds", scenario.local_steps * node.step_seconds)


def _latency(node: Link, ways: int) -> Stage:
    return Stage("latency", node.name, "latency_ms", ways * node.latency_ms / 1000)
