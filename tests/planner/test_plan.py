from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distro_fed.errors import SettingsError
from distro_fed.planner.codec import Codec
from distro_fed.planner.links import SERVER, Link, Network, equal_nodes
from distro_fed.planner.plan import make_plan
from distro_fed.planner.update_sizes import frame_bytes, reply_bytes, request_bytes
from distro_fed.reporting.references import Traffic
from tests.planner.scenarios import LINK, SHAPE, scenario

CODEC = Codec("quantized", bits=1)
FRAME = frame_bytes(CODEC, SHAPE.layout)
UP, DOWN = reply_bytes(FRAME), request_bytes(FRAME)


def seconds(size: float, mbit: float) -> float:
    return size * 8 / mbit / 1e6


def test_a_server() -> None:
    plan = make_plan(scenario(CODEC))
    assert (plan.frame_up, plan.frame_down) == (FRAME, FRAME)
    assert plan.per_round == Traffic(UP, DOWN)
    assert plan.hub == Traffic(4 * DOWN, 4 * UP)
    assert plan.seconds_down == pytest.approx(seconds(DOWN, 100))
    assert plan.seconds_up == pytest.approx(seconds(UP, 10))
    assert plan.seconds_compute == 2.0
    assert plan.seconds_round == pytest.approx(seconds(DOWN, 100) + 2.0 + seconds(UP, 10) + 2 * 0.05)
    assert plan.seconds_run == pytest.approx(6 * plan.seconds_round)
    assert plan.describe_bottleneck() == "uplink of node 1 (3 more alike)"


def test_peers_send_to_each_other() -> None:
    plan = make_plan(scenario(CODEC, nodes=5, topology="peer-to-peer"))
    assert plan.per_round == Traffic(4 * UP, 4 * UP)
    assert plan.per_run == Traffic(24 * UP, 24 * UP)
    assert plan.hub is None
    assert plan.seconds_up == pytest.approx(10 * plan.seconds_down)
    # both directions at the same time
    assert plan.seconds_round == pytest.approx(2.0 + seconds(4 * UP, 10) + 0.05)


def test_groups_with_aggregators() -> None:
    network = Network(equal_nodes(7, LINK), replace(SERVER, up_mbit=500, latency_ms=10)).in_groups(3)
    plan = make_plan(scenario(CODEC, network=network, topology="hybrid"))
    between = 2 * reply_bytes(FRAME)
    assert plan.per_round == Traffic(UP, DOWN)
    assert plan.hub == Traffic(3 * DOWN + between, 3 * UP + between)
    alone = make_plan(scenario(CODEC, network=Network(equal_nodes(3, LINK), network.server)))
    assert plan.seconds_round == pytest.approx(alone.seconds_round + seconds(between, 500) + 0.01)


def test_one_group_is_one_server() -> None:
    one = make_plan(scenario(CODEC, network=scenario().network.in_groups(1), topology="hybrid"))
    assert one.seconds_round == make_plan(scenario(CODEC)).seconds_round
    assert one.per_run == make_plan(scenario(CODEC)).per_run


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ({"up_mbit": 1.0}, "uplink of slow"),
        ({"down_mbit": 1.0}, "downlink of slow"),
        ({"step_seconds": 60.0}, "computing at slow"),
        ({"latency_ms": 90_000.0}, "latency of slow"),
    ],
)
@pytest.mark.parametrize("topology", ["server", "peer-to-peer", "hybrid"])
def test_the_bottleneck_has_a_name(slow: dict[str, Any], expected: str, topology: str) -> None:
    nodes = (*equal_nodes(3, LINK), replace(LINK, name="slow", **slow))
    network = Network(nodes).in_groups(2)
    assert make_plan(scenario(CODEC, network=network, topology=topology)).describe_bottleneck() == expected


def test_the_server_can_be_the_bottleneck() -> None:
    slow = Network(equal_nodes(50, LINK), Link("server", down_mbit=100, up_mbit=100))
    plan = make_plan(scenario(CODEC, network=slow))
    assert plan.describe_bottleneck() in ("uplink of server", "downlink of server")
    assert plan.seconds_down == pytest.approx(seconds(50 * DOWN, 100))
    assert plan.seconds_up == pytest.approx(seconds(50 * UP, 100))
    grouped = make_plan(scenario(CODEC, network=slow.in_groups(2), topology="hybrid"))
    assert "of aggregator of group 1" in grouped.describe_bottleneck()


def test_the_slowest_node_counts_not_the_slowest_of_each_kind() -> None:
    thin = replace(LINK, name="thin", up_mbit=2.0)
    busy = replace(LINK, name="busy", step_seconds=20.0)
    both = make_plan(scenario(CODEC, network=Network((thin, busy)))).seconds_round
    each = [make_plan(scenario(CODEC, network=Network((node,)))).seconds_round for node in (thin, busy)]
    assert both == pytest.approx(max(each))


def test_the_two_directions_may_have_their_own_codec() -> None:
    plan = make_plan(scenario(CODEC, downlink=Codec("quantized", bits=8)))
    assert plan.frame_up == FRAME and plan.frame_down == frame_bytes(Codec("quantized", bits=8), SHAPE.layout)
    assert plan.per_round.received > 7 * plan.per_round.sent


def test_references_are_those_of_a_report() -> None:
    references = make_plan(scenario(CODEC)).references()
    parameters = SHAPE.parameters
    assert references["R1"] == Traffic(2 * parameters * 6, 2 * parameters * 6)
    assert references["R2"] == Traffic(3 * parameters * 24, 3 * parameters * 24)
    assert references["R3"] == Traffic(0, 3 * 2 * parameters * 24)


def test_a_measured_run_of_the_demo() -> None:
    """Full fine-tuning in docs: 128 kB up and 126 kB down of one client in 6 rounds."""
    plan = make_plan(scenario(Codec("subspace", rank=1, bits=1)))
    assert plan.per_run.sent == pytest.approx(127_588, rel=0.002)
    assert plan.per_run.received == pytest.approx(125_793, rel=0.002)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"local_steps": -1}, "local steps = -1"),
        ({"topology": "ring"}, "'ring'; choose one of server, peer-to-peer, hybrid"),
        ({"topology": "hybrid"}, "node 1 has no group"),
        ({"topology": "peer-to-peer", "nodes": 1}, "a single node has no peers"),
    ],
)
def test_what_cannot_be_planned(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        scenario(**changes)
