"""Restores that are killed at one moment each: `python -m tests.backup.killed`, orders on standard input as JSON.

An order is {"data", "store", "file", "at": [module, name, call, "before" or "after"]}. Each is carried out by a process
of its own, which ends itself there as kill -9 would.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from gpufleet.config.scheduler_settings import SchedulerSettings
from scheduler.backup import archive, restoring
from scheduler.store import postgres  # noqa: F401  # loaded once for all


def die_at(module: str, name: str, call: int, when: str) -> None:
    """Let this process end at a call of a function, or of a method: CLASS.NAME."""
    holder: Any = importlib.import_module(module)
    *classes, name = name.split(".")
    for each in classes:
        holder = getattr(holder, each)
    real, calls = getattr(holder, name), 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if (calls, when) == (call, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(*arguments, **named)
        if (calls, when) == (call, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(holder, name, counted)


def main() -> int:
    """Carry out each order; 1 where one came to its end, or died of something else."""
    wrong = 0
    for order in json.load(sys.stdin):
        child = os.fork()
        if child == 0:
            die_at(*order["at"])
            settings = SchedulerSettings(data=Path(order["data"]), store=order["store"])
            with archive.opened(Path(order["file"])) as opened:
                restoring.restore(settings, opened, replaces=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            print(f"{order['at']} ended with {status}", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
