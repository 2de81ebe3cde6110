"""The server as a process: how it begins, and each way in which it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until

CLASS = """
import pathlib, time

class Waits:
    def load(self, args):
        if args.get("broken"):
            import there_is_no_such_module
        self.args = args

    def predict(self, items):
        pathlib.Path("began").write_text("")
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        return items
"""
SCARCE = """
class Waits:
    examples = (1,)

    def load(self):
        pass

    def predict(self, items):
        if len(items) > 8:
            raise MemoryError("there is room for eight")
        return items
"""
ASKED = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [7]}]})


@contextmanager
def program(folder: Path, *flags: str, text: str = CLASS) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The server of the class, and its log; it is ended where it has not ended."""
    (folder / "waits.py").write_text(text)
    log = folder / "log"
    command = [sys.executable, "-P", "-m", "gpufleet.inference.predict", "waits:Waits", *flags]
    with log.open("wb") as opened:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
            cwd=folder,
            env=clean_environment(folder, {}),
        )
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def port_of(log: Path) -> int:
    def listens() -> re.Match[str] | None:
        return re.search(r"listening on 127\.0\.0\.1:(\d+).* ready", log.read_text(), re.DOTALL)

    await until("it is ready", listens)
    found = listens()
    assert found is not None
    return int(found[1])


def ask(port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    try:
        connection.request("POST", "/v2/models/Waits/infer", body=ASKED)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def ended(process: subprocess.Popen[bytes]) -> int:
    await until("it has ended", lambda: process.poll() is not None)
    assert process.returncode is not None
    return process.returncode


async def test_a_class_that_cannot_be_loaded_ends_it_with_a_sentence(tmp_path: Path) -> None:
    with program(tmp_path, "--model-arg", "broken=1") as (process, log):
        assert await ended(process) == 1
        assert "waits:Waits: the model needs there_is_no_such_module, which is not installed" in log.read_text()


async def test_the_batch_size_is_found_where_the_flag_says_so(tmp_path: Path) -> None:
    with program(tmp_path, "--max-batch", "auto", text=SCARCE) as (_, log):
        port = await port_of(log)
        assert "batches of 16 do not fit into memory" in log.read_text()
        assert "ready: batches of at most 8" in log.read_text()
        assert (await asyncio.to_thread(ask, port))[0] == 200


async def test_told_to_stop_it_answers_what_it_has_taken_in(tmp_path: Path) -> None:
    with program(tmp_path) as (process, log):
        port = await port_of(log)
        asking = asyncio.create_task(asyncio.to_thread(ask, port))
        await until("the item is computed", (tmp_path / "began").exists)
        process.send_signal(signal.SIGTERM)
        await until("it has heard", lambda: "stopping: 1 items" in log.read_text())
        (tmp_path / "go").write_text("")
        status, said = await asking
        assert status == 200 and json.loads(said)["outputs"][0]["data"] == [7]
        assert await ended(process) == 0 and "1 items answered in 1 batches" in log.read_text()


async def test_a_call_that_does_not_come_back_is_answered_for_and_ends_it(tmp_path: Path) -> None:
    with program(tmp_path, "--predict-timeout", "200ms") as (process, log):
        status, said = await asyncio.to_thread(ask, await port_of(log))
        assert (status, json.loads(said)) == (500, {"error": "the model did not answer within 0.2 s"})
        assert await ended(process) == 3 and "--predict-timeout" in log.read_text()


COLLECTED = """
import gc
import numpy as np

class Waits:
    def load(self):
        self.kept = [[number] for number in range(1_000)]

    def predict(self, items):
        seen = sum(each is self.kept for each in gc.get_objects())
        return [np.array([gc.get_freeze_count(), seen], np.int64) for _ in items]
"""


async def test_the_collector_does_not_look_through_what_is_loaded(tmp_path: Path) -> None:
    with program(tmp_path, text=COLLECTED) as (_, log):
        status, said = await asyncio.to_thread(ask, await port_of(log))
        assert status == 200, said
        frozen, seen = json.loads(said)["outputs"][0]["data"]
        assert frozen > 1_000 and seen == 0
