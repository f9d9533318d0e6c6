"""DisTrO-AdamW and DeMo: data-parallel training that exchanges a few bits a chunk instead of gradients."""

from __future__ import annotations

from distro_fed.optim.aggregator import Aggregator
from distro_fed.optim.aggregator_link import AggregatorLink
from distro_fed.optim.all_gather import AllGather
from distro_fed.optim.distro_adamw import DistroAdamW
from distro_fed.optim.exchange import Exchange
from distro_fed.optim.frames import FrameCoder
from distro_fed.optim.simulated_peers import SimulatedPeers

__all__ = ["Aggregator", "AggregatorLink", "AllGather", "DistroAdamW", "Exchange", "FrameCoder", "SimulatedPeers"]
