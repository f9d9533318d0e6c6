"""What every organisation runs."""

from distro_fed.clients import make_client_app

app = make_client_app()
