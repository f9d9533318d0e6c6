"""Command line: ``python -m benchmarks.frontier run grid.toml`` and ``python -m benchmarks.frontier draw``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.frontier import result_lines
from benchmarks.frontier.grid import read_grid
from benchmarks.frontier.page import write_all
from benchmarks.frontier.schedule import ROOT, run_all
from benchmarks.frontier.tasks import open_task


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the configurations of a grid that have no result yet")
    run.add_argument("grid", type=Path, nargs="+")
    run.add_argument("--workers", type=int, default=1, help="runs at a time, one thread each")
    run.add_argument("--results", type=Path, help="file to append to (default: results/<name of the grid>.jsonl)")
    run.add_argument("--only", default="", help="only pipelines of this name")
    commands.add_parser("draw", help="write tables and pictures of all results into docs/")
    arguments = parser.parse_args()
    if arguments.command == "draw":
        for path in write_all(result_lines.read(), ROOT / "docs"):
            print(path.relative_to(ROOT))
        return 0
    failed = 0
    for path in arguments.grid:
        configurations = [one for one in read_grid(path) if arguments.only in ("", one.pipeline)]
        if not configurations:
            parser.error(f"{path} has no pipeline {arguments.only!r}")
        for task in {one.task for one in configurations}:
            open_task(task)  # before several processes would write it
        failed += run_all(
            configurations, arguments.results or result_lines.FOLDER / f"{path.stem}.jsonl", arguments.workers
        )
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
