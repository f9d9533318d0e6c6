from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def double(msg: Message, context: Context) -> Message:
    number = int(msg.content["config"]["number"])
    return Message(RecordDict({"config": ConfigRecord({"number": 2 * number})}), reply_to=msg)
