import subprocess
import sys
import time
from pathlib import Path

import psutil

from distro_fed.cli.processes import ProcessTree, is_alive

# A parent whose helper sits in a session of its own and ignores polite requests, as some of Ray's do.
HELPER = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({ready!r}, "w").close()
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {helper!r}], start_new_session=True)
time.sleep({seconds})
"""


def start(tmp_path: Path, seconds: float) -> ProcessTree:
    ready = tmp_path / "ready"
    code = PARENT.format(helper=HELPER.format(ready=str(ready)), seconds=seconds)
    tree = ProcessTree(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
    while not ready.exists():
        time.sleep(0.02)
    return tree


def test_a_helper_in_its_own_session_is_ended_too(tmp_path: Path) -> None:
    tree = start(tmp_path, seconds=600)
    helpers = psutil.Process(tree.root.pid).children(recursive=True)
    assert helpers
    tree.stop(grace=0.3)
    assert tree.root.poll() is not None
    assert not any(is_alive(helper) for helper in helpers)


def test_a_helper_is_remembered_when_its_parent_has_gone(tmp_path: Path) -> None:
    tree = start(tmp_path, seconds=1)
    tree.look()
    helpers = psutil.Process(tree.root.pid).children(recursive=True)
    tree.root.wait(timeout=120)
    assert helpers and all(helper.is_running() for helper in helpers)
    tree.stop(grace=0.3)
    assert not any(is_alive(helper) for helper in helpers)
