"""Names of what lies in the folder of a run."""

EVENTS_FILE = "events.jsonl"
REPORT_FILE = "report.json"
HTML_FILE = "report.html"
MODEL_FOLDER = "model"
CHECKPOINT_FOLDER = "checkpoint"
