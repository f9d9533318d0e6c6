"""Ending a process together with everything that it started, also what left its process group."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil  # type: ignore[import-untyped]


class ProcessTree:
    """A child process and all its descendants, by process id and start time.

    Flower and Ray put their helpers into sessions of their own, so a signal to one process group does
    not reach them; and a helper whose parent has died is nobody's descendant any more. :meth:`look`,
    called now and then, remembers each of them while it can still be found.

    Parameters
    ----------
    root : subprocess.Popen
        A child of this process.
    """

    def __init__(self, root: subprocess.Popen[bytes]) -> None:
        self.root = root
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Remember the descendants that live now."""
        try:
            known = [psutil.Process(self.root.pid), *self._seen]
        except psutil.NoSuchProcess:
            known = list(self._seen)
        for process in known:
            try:
                # is_running() compares start times: a process id that was given to somebody else is left alone
                if process.is_running():
                    self._seen.update(process.children(recursive=True))
            except psutil.NoSuchProcess:
                continue

    def stop(self, grace: float = 5.0) -> None:
        """End all of them: ask first, and kill what is still there after ``grace`` seconds."""
        stop_together([self], grace)

    def _send(self, how: str) -> None:
        self.look()  # the second time for what was started meanwhile, such as a replacement for an ended worker
        if self.root.poll() is None:
            getattr(self.root, how)()
        for process in self._seen:
            with suppress(psutil.NoSuchProcess):
                getattr(process, how)()

    def _lives(self) -> bool:
        return self.root.poll() is None or any(map(is_alive, self._seen))


def stop_together(trees: Sequence[ProcessTree], grace: float = 5.0) -> None:
    """End several trees at the same time, as :meth:`ProcessTree.stop` does one."""
    for how in ("terminate", "kill"):
        for tree in trees:
            tree._send(how)
        deadline = time.monotonic() + grace
        while any(tree._lives() for tree in trees) and time.monotonic() < deadline:
            time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs. One that has ended and waits for its parent to notice does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
