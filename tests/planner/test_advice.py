from __future__ import annotations

from dataclasses import replace

import pytest

from distro_fed.planner.advice import advise
from distro_fed.planner.codec import Codec
from distro_fed.planner.links import Link, Network, equal_nodes
from distro_fed.planner.plan import Scenario, make_plan
from tests.planner.scenarios import LINK, scenario


def changes_of(scenario: Scenario) -> dict[str, float]:
    return {change.what: change.plan.seconds_run for change in advise(make_plan(scenario))}


def test_every_change_is_a_plan_that_is_faster() -> None:
    now = make_plan(scenario(Codec("quantized", bits=8)))
    changes = advise(now)
    times = [change.plan.seconds_run for change in changes]
    assert 0 < len(changes) <= 7 and times == sorted(times)
    assert max(times) <= 0.95 * now.seconds_run
    for change in changes:
        assert change.plan == make_plan(change.plan.scenario)
        assert change.plan.scenario.local_steps * change.plan.scenario.rounds == 24


def test_nothing_slower_is_advised() -> None:
    small = Codec("subspace", rank=1, bits=1)
    now = make_plan(scenario(small, link=replace(LINK, up_mbit=0.1, step_seconds=0.1), local_steps=1))
    changes = advise(now)
    assert 0 < len(changes) < 6
    assert all(change.plan.seconds_run < now.seconds_run for change in changes)


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (Codec("dense"), ["dense dtype=bfloat16", "quantized bits=1"]),
        (Codec("quantized", bits=8), ["quantized bits=4", "quantized bits=1"]),
        (Codec("topk", density=1 / 8), ["topk density=1/16", "topk density=1/64"]),
    ],
)
def test_other_codecs(codec: Codec, expected: list[str]) -> None:
    found = changes_of(scenario(codec, link=replace(LINK, step_seconds=0.001)))
    # the best seven leave some out
    assert set(expected) & set(found)
    assert found.keys() & {"subspace rank=1 bits=1"}


def test_more_local_steps() -> None:
    distant = scenario(Codec("subspace", rank=1), rounds=8, local_steps=1, link=replace(LINK, latency_ms=900))
    assert {"2 local steps, 4 rounds", "4 local steps, 2 rounds"} <= changes_of(distant).keys()
    # 3 steps cannot be made in rounds of 2 or 4
    assert not any("local steps" in what for what in changes_of(replace(distant, rounds=3)))


def test_no_subspace_for_an_adapter() -> None:
    assert not any("subspace" in what for what in changes_of(scenario(mode="lora")))


def test_a_faster_link_for_the_one_that_all_wait_for() -> None:
    slow = replace(LINK, name="slow", up_mbit=0.5)
    network = Network((*equal_nodes(3, LINK), slow))
    now = scenario(Codec("subspace", rank=8, bits=8), network=network)
    (change,) = (change for change in advise(make_plan(now)) if "Mbit/s" in change.what)
    assert change.what.startswith("uplink of slow at") and change.what.endswith("not 0.5")
    assert change.plan.scenario.network.nodes[:3] == network.nodes[:3]
    assert change.plan.scenario.network.nodes[3].up_mbit > 2
    assert change.plan.seconds_run < make_plan(now).seconds_run


def test_all_links_if_all_are_as_slow() -> None:
    found = changes_of(scenario(Codec("subspace", rank=64, bits=8), link=replace(LINK, up_mbit=5)))
    assert any(what.startswith("uplink of node 1 (3 more alike) at") for what in found), found


@pytest.mark.parametrize("rank", [33, 256])
@pytest.mark.parametrize("step_seconds", [0.001, 60.0])
def test_no_rank_beyond_what_a_frame_has_room_for(rank: int, step_seconds: float) -> None:
    found = changes_of(scenario(Codec("tracking-topk", rank=rank), link=replace(LINK, step_seconds=step_seconds)))
    assert found and not any("rank=264" in what or "rank=512" in what for what in found)


def test_another_topology() -> None:
    found = changes_of(scenario(Codec("subspace", rank=1), nodes=32, topology="peer-to-peer",
                                link=Link(up_mbit=1, step_seconds=0.01)))  # fmt: skip
    assert {"one server for all", "5 groups, each with an aggregator"} <= found.keys()
    server = Link("server", 10.0, 10.0, 20.0, 0.0)
    crowded = scenario(
        Codec("subspace", rank=1), network=Network(equal_nodes(64, replace(LINK, step_seconds=0.01)), server)
    )
    found = changes_of(crowded)
    assert "8 groups, each with an aggregator" in found
    assert any("of server at" in what for what in found)


@pytest.mark.parametrize(
    "codec", [Codec("subspace", rank=2, bits=1), Codec("quantized", bits=1), Codec("topk")], ids=str
)
def test_what_the_links_have_room_for(codec: Codec) -> None:
    now = make_plan(scenario(codec, link=Link(down_mbit=1000, up_mbit=1000, step_seconds=30)))
    changes = advise(now)
    sizes = [change.plan.per_run.total for change in changes]
    assert changes and sizes == sorted(sizes, reverse=True)
    assert "2 local steps, 12 rounds" in {change.what for change in changes}
    for change in changes:
        assert change.plan.per_run.total > now.per_run.total
        assert change.plan.seconds_run <= 1.05 * now.seconds_run


def test_nothing_to_advise() -> None:
    ideal = Link(down_mbit=1e6, up_mbit=1e6, latency_ms=0, step_seconds=1)
    network = Network(equal_nodes(2, ideal), ideal)
    assert changes_of(scenario(Codec("dense"), network=network, local_steps=1, rounds=1)) == {}
