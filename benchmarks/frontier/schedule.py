"""Runs what a grid asks for and has no result yet, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.frontier import result_lines
from benchmarks.frontier.grid import Configuration

ROOT = Path(__file__).parents[2]


def run_all(configurations: Sequence[Configuration], into: Path, workers: int) -> int:
    """Run what is missing, in the order given; returns how many failed.

    A run that is killed leaves nothing behind and is run again the next time.
    """
    done = {finished["id"] for finished in result_lines.read([into])}
    waiting = [one for one in configurations if one.id not in done]
    print(f"{len(configurations)} configurations, {len(waiting)} to run, {workers} at a time", flush=True)
    failed = 0
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_run_one, one): one for one in waiting}
        for future in as_completed(futures):
            one = futures[future]
            try:
                finished = future.result()
            except RuntimeError as error:
                failed += 1
                print(f"FAILED {one.pipeline} {dict(one.settings)} seed {one.seed}: {error}", flush=True)
                continue
            result_lines.append(into, finished)
            print(
                f"{one.task} | {one.pipeline} | seed {one.seed} | {_words(one)} | loss {finished['loss']:.4f} | up "
                f"{finished['bytes_up'] / 1e3:,.1f} kB, down {finished['bytes_down'] / 1e3:,.1f} kB | "
                f"{finished['seconds']} s",
                flush=True,
            )
    return failed


def _run_one(configuration: Configuration) -> dict[str, Any]:
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"} | os.environ
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.frontier.one", configuration.to_json()],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.strip().splitlines()[-8:]))
    finished: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return finished


def _words(configuration: Configuration) -> str:
    return " ".join(f"{name}={value}" for name, value in configuration.settings.items())


def run_here(configuration: Configuration) -> dict[str, Any]:
    """Run one configuration in this process."""
    from benchmarks.frontier.runners import runner
    from benchmarks.frontier.tasks import open_task

    started = time.monotonic()
    outcome = runner(configuration.runner)(open_task(configuration.task), configuration)
    return result_lines.row(configuration, outcome, time.monotonic() - started)
