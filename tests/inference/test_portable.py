"""A worker where there is no POSIX, as far as Linux can play that: without its modules, functions and signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until

WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys

for name in ("pwd", "grp", "fcntl", "termios", "tty", "pty", "resource", "syslog", "crypt", "spwd"):
    sys.modules[name] = None
for name in ("getuid", "geteuid", "getgid", "getegid", "fork", "forkpty", "fchmod", "fchown", "chown", "setsid",
             "killpg", "sched_getaffinity", "posix_spawn", "getloadavg", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGCHLD", "SIGPIPE", "SIGTSTP"):
    delattr(signal, name)

import gpufleet, gpufleet.inference

OTHERS = ("gpufleet.scheduler", "gpufleet.node_agent", "gpufleet.gateway", "gpufleet.cli", "gpufleet.v1")
for package in (gpufleet, gpufleet.inference):
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not each.name.startswith(OTHERS) and not each.name.endswith("__main__"):
            importlib.import_module(each.name)

from gpufleet.inference.__main__ import main

sys.exit(main(["test-pattern", "--standalone", "--port", "0", "--device", "cpu", "--ticket-secret-file", sys.argv[1]]))
"""


async def test_a_worker_needs_nothing_that_only_posix_has(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    command = [sys.executable, "-P", "-c", WITHOUT_POSIX, str(tmp_path / "ticket.secret")]
    with log.open("wb") as opened:
        process = subprocess.Popen(  # noqa: ASYNC220
            command, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened, env=clean_environment(tmp_path, {})
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return re.search(r"ready: test-pattern, \d+ seats", log.read_text()) is not None

        await until("the worker is ready", is_ready)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE_SECONDS)
    assert code == 0, log.read_text()
