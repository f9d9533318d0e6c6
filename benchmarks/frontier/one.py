"""One configuration, given as JSON, in this process; its result is the last line of the output."""

from __future__ import annotations

import json
import sys

from benchmarks.frontier.grid import Configuration
from benchmarks.frontier.schedule import run_here

if __name__ == "__main__":
    print(json.dumps(run_here(Configuration.from_json(sys.argv[1]))))
