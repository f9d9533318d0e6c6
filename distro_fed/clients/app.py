"""A ready client app."""

from __future__ import annotations

from flwr.clientapp import ClientApp

from distro_fed.clients.fine_tuning import FineTuning
from distro_fed.clients.private_client import PrivateClient
from distro_fed.settings import RunSettings


def make_client_app(settings: RunSettings | None = None) -> ClientApp:
    """Make the ``ClientApp`` that fine-tunes the run's base model on each organisation's own text.

    Parameters
    ----------
    settings : RunSettings, optional
        By default the run's own (``run_config``), read with every message.
    """
    return PrivateClient.from_task(FineTuning(), settings).app()
