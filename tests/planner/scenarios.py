"""Scenarios that the tests of the planner start from."""

from __future__ import annotations

from typing import Any

from distro_fed.planner.codec import Codec
from distro_fed.planner.links import SERVER, Link, Network, equal_nodes
from distro_fed.planner.model_shapes import model_shape
from distro_fed.planner.plan import Scenario

SHAPE = model_shape("packaged:smollm2-135m")
LINK = Link(down_mbit=100, up_mbit=10, latency_ms=50, step_seconds=0.5)


def scenario(codec: Codec | None = None, *, nodes: int = 4, link: Link = LINK, **changes: Any) -> Scenario:
    """Full fine-tuning of the 135M model, 6 rounds of 4 steps."""
    codec = codec or Codec("dense")
    values = {
        "model": SHAPE, "mode": "full", "layout": SHAPE.layout, "uplink": codec, "downlink": codec,
        "network": Network(equal_nodes(nodes, link), SERVER), "topology": "server", "local_steps": 4, "rounds": 6,
    }  # fmt: skip
    return Scenario(**{**values, **changes})
