"""What an organisation runs. Importing this package imports neither torch nor transformers."""

from distro_fed.clients.app import make_client_app
from distro_fed.clients.private_client import PrivateClient
from distro_fed.clients.task import EvaluateResult, RoundInfo, TrainResult

__all__ = ["EvaluateResult", "PrivateClient", "RoundInfo", "TrainResult", "make_client_app"]
