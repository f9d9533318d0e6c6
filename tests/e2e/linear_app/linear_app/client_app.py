"""What every member runs."""

from distro_fed.clients import PrivateClient
from linear_app.task import evaluate, load_model, train

app = PrivateClient(load_model, train, evaluate).app()
