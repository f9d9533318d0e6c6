import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from distro_fed.reporting.events import EventWriter

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    with EventWriter(Path(str(config["run-dir"])) / "events.jsonl") as events:
        events.write("round_started", round=0, clients=[str(config["run-name"])])
        if config["fail"]:
            raise RuntimeError(f"asked to fail: {config['fail']}")
        while len(nodes := sorted(grid.get_node_ids())) < 2:
            time.sleep(0.1)
        for number in range(1, int(config["num-server-rounds"]) + 1):
            content = RecordDict({"config": ConfigRecord({"number": number})})
            replies = list(grid.send_and_receive([Message(content, node, "query") for node in nodes]))
            doubled = [int(reply.content["config"]["number"]) for reply in replies]
            events.write("round_started", round=number, clients=[str(answer) for answer in doubled])
        events.write("run_finished", seconds=0)
