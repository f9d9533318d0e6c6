"""A member that answers both kinds of round. Each handler imports what it needs, as an app of its own would."""

from functools import cache

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def compressed(message: Message, context: Context) -> Message:
    return private_client()(message, context)


@app.train("plain")
def plain(message: Message, context: Context) -> Message:
    from round_overhead_app.task import load_model, train

    model = load_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    examples, loss = train(model)
    metrics = MetricRecord({"train-loss": loss, "num-examples": examples})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@cache
def private_client() -> ClientApp:
    from distro_fed.clients import PrivateClient, TrainResult
    from round_overhead_app.task import load_model, train

    return PrivateClient(load_model, lambda model, info: TrainResult(*train(model))).app()
