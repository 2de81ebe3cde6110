"""A worker where there is no POSIX, as far as Linux can play that: without its modules, functions and signals."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gpufleet.v1 import inference_pb2_grpc

from gpufleet.net.addresses import parse_address
from gpufleet.net.channel import Target, connect_async
from gpufleet.runtimes.probe import one_node_model
from gpufleet.security.tickets import sign_ticket, ticket_for
from gpufleet.security.tokens import make_token
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.inference.serving import ME, Client, GrpcStream
from tests.inference.test_link import FakeScheduler, scheduler

WITHOUT_POSIX = """
import asyncio, importlib, os, pkgutil, signal, socket, sys

for name in ("pwd", "grp", "fcntl", "termios", "tty", "pty", "resource", "syslog", "crypt", "spwd", "uvloop"):
    sys.modules[name] = None
for name in ("getuid", "geteuid", "getgid", "getegid", "fork", "forkpty", "fchmod", "fchown", "chown", "setsid",
             "killpg", "sched_getaffinity", "posix_spawn", "getloadavg", "O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW",
             "WNOHANG", "waitid", "getpgid", "mkfifo", "sync", "statvfs", "nice"):
    delattr(os, name)
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGCHLD", "SIGPIPE", "SIGTSTP", "SIGQUIT", "SIGALRM",
             "SIGCONT", "SIGSTOP", "SIGWINCH", "pthread_sigmask", "pthread_kill", "sigwait", "setitimer", "alarm"):
    delattr(signal, name)
delattr(socket, "SO_REUSEPORT")


def not_here(*arguments, **more):
    raise NotImplementedError


asyncio.SelectorEventLoop.add_signal_handler = asyncio.SelectorEventLoop.remove_signal_handler = not_here
"""
"""What Windows lacks, removed before anything of the project is loaded."""

WORKER = """
import gpufleet, gpufleet.inference

OTHERS = ("gpufleet.scheduler", "gpufleet.node_agent", "gpufleet.gateway", "gpufleet.cli", "gpufleet.v1")
for package in (gpufleet, gpufleet.inference):
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not each.name.startswith(OTHERS) and not each.name.endswith("__main__"):
            importlib.import_module(each.name)

from gpufleet.inference.__main__ import main

sys.exit(main(["test-pattern", "--port", "0", "--device", "cpu", *sys.argv[1:]]))
"""
"""The worker's program, after every module of it and of the library was loaded."""


@asynccontextmanager
async def without_posix(folder: Path, *flags: str, **variables: str) -> AsyncIterator[Path]:
    """A worker, and its log; in the end it is told to stop, and must."""
    log = folder / "worker.log"
    command = [sys.executable, "-P", "-c", WITHOUT_POSIX + WORKER, *flags]
    with log.open("wb") as opened:
        process = subprocess.Popen(  # noqa: ASYNC220
            command, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened, env=clean_environment(folder, variables)
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return re.search(r"ready: [\w-]+, \d+ seats", log.read_text()) is not None

        await until("the worker is ready", is_ready)
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE_SECONDS)
    assert code == 0, log.read_text()
    assert "stopping" in log.read_text() and "Traceback" not in log.read_text(), log.read_text()


async def test_a_worker_needs_nothing_that_only_posix_has(tmp_path: Path) -> None:
    secret = tmp_path / "ticket.secret"
    async with without_posix(tmp_path, "--standalone", "--ticket-secret-file", str(secret)) as log:
        found = re.search(r"listening on (\S+), start (\w+)", log.read_text())
        assert found is not None
        async with connect_async(Target(address=parse_address(found[1]))) as channel:
            client = Client(GrpcStream(inference_pb2_grpc.InferenceStub(channel).Stream()))
            ticket = ticket_for("s", 1, worker_start=found[2], identity=ME, now_s=time.time())
            await client.open(sign_ticket(ticket, bytes.fromhex(secret.read_text())))
            await client.click()
            await client.frame_with(1)
            await client.leave()


async def test_a_worker_by_hand_dials_its_scheduler_and_certifies_itself_without_posix(tmp_path: Path) -> None:
    fake = FakeScheduler()
    async with scheduler(fake) as port:
        reached = ("--host", "0.0.0.0", "--scheduler", f"127.0.0.1:{port}", "--name", "drawn")
        async with without_posix(tmp_path, *reached, GPUCTL_TOKEN=make_token()):
            await until("the scheduler hears that it takes turns", lambda: any(each.seats for each in fake.reports))
    assert fake.hellos[0].model == "drawn"
    assert "BEGIN CERTIFICATE" in fake.hellos[0].certificate and fake.hellos[0].ticket_secret


IMPORT_THE_LIBRARY = """
import gpufleet, gpufleet.client, gpufleet.onnx, gpufleet.predict, gpufleet.runtimes

for package in (gpufleet.client, gpufleet.runtimes):
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(each.name)
"""

ANSWERS = """
from gpufleet.inference.predict.__main__ import main

sys.exit(main(sys.argv[1:]))
"""

ASKS = """
from gpufleet.client import InferenceClient

with InferenceClient(model="OnnxModel", addresses=sys.argv[1:]) as client:
    print([float(each.unwrap()) for each in client.predict([np.float32(1), np.float32(-2.5)])])
"""


async def test_a_file_of_onnx_is_served_and_asked_where_there_is_no_posix(tmp_path: Path) -> None:
    """The server's program and its client, each without what Windows lacks; ONNX Runtime itself is real."""
    pytest.importorskip("onnxruntime")
    (tmp_path / "twice.onnx").write_bytes(one_node_model())
    log = tmp_path / "predict.log"
    served = ("gpufleet.onnx:OnnxModel", "--port", "0", "--model-arg", f"file={tmp_path / 'twice.onnx'}")
    environment = clean_environment(tmp_path, {})
    with log.open("wb") as opened:
        # NumPy and ONNX Runtime are Linux's own here, and look at the machine when they are loaded.
        code = "import numpy, onnxruntime" + WITHOUT_POSIX + IMPORT_THE_LIBRARY + ANSWERS
        server = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-P", "-c", code, *served, "--device", "cpu"],
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
            env=environment,
        )
    try:

        def listens() -> re.Match[str] | None:
            assert server.poll() is None, log.read_text()
            return re.search(r"listening on (127\.0\.0\.1:\d+) .* ready", log.read_text(), re.DOTALL)

        await until("it is ready", listens)
        found = listens()
        assert found is not None
        code = "import numpy as np" + WITHOUT_POSIX + IMPORT_THE_LIBRARY + ASKS
        asked = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-P", "-c", code, found[1]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        assert (asked.stdout, asked.returncode) == ("[2.0, -5.0]\n", 0), asked.stderr
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE_SECONDS) == 0, log.read_text()
    assert "computes with onnxruntime" in log.read_text() and "2 items answered" in log.read_text()
