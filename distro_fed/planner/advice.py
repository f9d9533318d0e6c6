"""What to change, and the number that it would give: each answer is a plan of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from distro_fed.errors import SettingsError
from distro_fed.planner.codec import COMPRESSORS, PARAMETERS, Codec, largest_rank
from distro_fed.planner.links import Link
from distro_fed.planner.plan import Plan, Scenario, make_plan
from distro_fed.presets import COMPRESSOR_PRESETS, TRAINED_INSIDE

#: a change is worth telling if it saves this share of the time
_WORTH = 0.05
#: with more than this share of the time spent computing, bytes are not what to save
_COMPUTING = 0.8
_AT_MOST = 7
#: a link is not asked to be more than so many times faster
_FASTER = 10


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to change.

    Attributes
    ----------
    what : str
        For a person: ``quantized bits=1`` (in both directions), ``20 local steps, 5 rounds``.
    plan : Plan
        What it would give.
    """

    what: str
    plan: Plan


def advise(plan: Plan) -> list[Change]:
    """Changes that shorten the run at the same number of optimizer steps, the best first; at most seven.

    If training itself takes most of the time, fewer bytes would not help: then the changes are those that send *more*,
    for a better update, at little cost in time. Whether the loss is the same after a change is not for a formula to
    say.
    """
    now = plan.seconds_run
    if plan.seconds_compute > _COMPUTING * plan.seconds_round:
        finer = _changes(plan.scenario, (*_finer(plan.scenario), *_other_steps(plan.scenario, (1 / 2, 1 / 4))))
        found = [change for change in finer if change.plan.seconds_run <= (1 + _WORTH) * now]
        found.sort(key=lambda change: -change.plan.per_run.total)
        return found[:_AT_MOST]
    scenario = plan.scenario
    faster = _changes(
        scenario,
        (*_coarser(scenario), *_other_steps(scenario, (2, 4)), *_other_topology(scenario), *_faster_link(plan)),
    )
    found = [change for change in faster if change.plan.seconds_run <= (1 - _WORTH) * now]
    found.sort(key=lambda change: change.plan.seconds_run)
    return found[:_AT_MOST]


def _changes(scenario: Scenario, candidates: tuple[tuple[str, Scenario], ...]) -> Iterator[Change]:
    for what, candidate in dict(candidates).items():
        if candidate == scenario:
            continue
        try:
            yield Change(what, make_plan(candidate))
        except SettingsError:  # such as a rank that leaves no matrix: no advice then
            continue


def _coarser(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    for codec in (*_steps_of(scenario.uplink, 1 / 2), *_steps_of(scenario.uplink, 1 / 8), *_others(scenario)):
        yield _with_codec(scenario, codec)


def _finer(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    for codec in (*_steps_of(scenario.uplink, 2), *_steps_of(scenario.uplink, 8)):
        yield _with_codec(scenario, codec)


def _with_codec(scenario: Scenario, codec: Codec) -> tuple[str, Scenario]:
    return codec.describe(), replace(scenario, uplink=codec, downlink=codec)


def _others(scenario: Scenario) -> Iterator[Codec]:
    """Presets of the other compressors that this mode has."""
    for name in COMPRESSORS:
        if name not in COMPRESSOR_PRESETS or name in ("dense", scenario.uplink.name):
            continue
        if scenario.mode == "full" or name not in TRAINED_INSIDE:
            yield Codec.preset(name)


def _steps_of(codec: Codec, factor: float) -> Iterator[Codec]:
    """The same compressor with each of its parameters changed by about ``factor``."""
    for key in PARAMETERS[codec.name]:
        if key == "dense_dtype":
            yield replace(codec, dense_dtype="bfloat16" if factor < 1 else "float32")
        elif key == "density":
            yield replace(codec, density=min(1.0, codec.density * factor))
        elif key == "bits":
            yield replace(codec, bits=min(8, max(1, round(codec.bits * factor))))
        elif key == "value_bits":
            yield replace(codec, value_bits=1 if factor < 1 else 2)
        else:
            yield replace(codec, rank=min(largest_rank(codec.name), max(1, round(codec.rank * factor))))


def _other_steps(scenario: Scenario, factors: tuple[float, ...]) -> Iterator[tuple[str, Scenario]]:
    """Exchange more or less often, with as many optimizer steps in the run."""
    for factor in factors:
        steps = max(1, round(scenario.local_steps * factor))
        rounds = math.ceil(scenario.rounds * scenario.local_steps / steps)
        if rounds * steps == scenario.rounds * scenario.local_steps:
            yield f"{steps} local steps, {rounds} rounds", replace(scenario, local_steps=steps, rounds=rounds)


def _other_topology(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    count = len(scenario.network.nodes)
    if scenario.topology != "server":
        yield "one server for all", replace(scenario, topology="server")
    if scenario.topology != "hybrid" and count >= 4:
        groups = math.isqrt(count)
        network = scenario.network.in_groups(groups)
        yield f"{groups} groups, each with an aggregator", replace(scenario, topology="hybrid", network=network)


def _faster_link(plan: Plan) -> Iterator[tuple[str, Scenario]]:
    """The link that all wait for, and those that are no faster, quick enough to take no longer than training."""
    slow, network = plan.bottleneck, plan.scenario.network
    if slow.link not in ("up_mbit", "down_mbit"):
        return
    nodes = {node.name: node for node in network.nodes}
    was: float = getattr(nodes.get(slow.where, network.server), slow.link)
    speed = was * slow.seconds / max(plan.seconds_compute, slow.seconds / _FASTER)
    if slow.where in nodes:
        network = replace(network, nodes=tuple(_at_least(node, slow.link, speed) for node in network.nodes))
    else:
        network = replace(network, server=_at_least(network.server, slow.link, speed))
    yield f"{plan.describe_bottleneck()} at {speed:.3g} Mbit/s, not {was:.3g}", replace(plan.scenario, network=network)


def _at_least(link: Link, direction: str, speed: float) -> Link:
    if direction == "up_mbit":
        return replace(link, up_mbit=max(link.up_mbit, speed))
    return replace(link, down_mbit=max(link.down_mbit, speed))
