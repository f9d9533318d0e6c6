"""What the server runs."""

from distro_fed.strategies.distro import DistroStrategy

__all__ = ["DistroStrategy"]
