"""The client and the server of model classes understand each other; a child made by fork asks for itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from gpufleet.client import Backend, ErrorKind, InferenceClient
from tests.conftest import LongLived

ROOT = Path(__file__).resolve().parents[2]
READY_S_MAX = 120.0

MODEL = """
class Doubler:
    def load(self, device):
        pass

    def predict(self, items):
        return [self.one(item) for item in items]

    def one(self, item):
        if isinstance(item, dict):
            return {"got": item, "known": True}
        if isinstance(item, bytes):
            return ValueError("bad") if item == b"bad" else item + b"\\xff"
        return 2 * item
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, long_lived: LongLived) -> Iterator[str]:
    """Where such a server listens."""
    folder = tmp_path_factory.mktemp("worker")
    (folder / "doubling.py").write_text(MODEL)
    log = folder / "log"
    command = [sys.executable, "-P", "-m", "gpufleet.inference.predict", "doubling:Doubler", "--device", "cpu"]
    with long_lived("a worker"), log.open("wb") as opened:
        process = subprocess.Popen(command, cwd=folder, stdout=opened, stderr=opened)
    try:
        until_s = time.monotonic() + READY_S_MAX
        while not ((found := re.search(r"127\.0\.0\.1:(\d+)", log.read_text())) and "ready on" in log.read_text()):
            assert process.poll() is None and time.monotonic() < until_s, log.read_text()
            time.sleep(0.02)
        yield found[0]
    finally:
        process.terminate()
        process.wait(READY_S_MAX)


def test_items_of_every_kind_go_there_and_back(address: str) -> None:
    with InferenceClient(model="Doubler", address=address) as client:
        numbers = client.predict([1.5, 2])
        assert [result.value for result in numbers] == [3.0, 4.0]
        assert {(result.backend, result.is_fallback) for result in numbers} == {(Backend.CPU, False)}
        objects = client.predict([{"a": 1}, {"b": [None]}])
        assert [result.value for result in objects] == [
            {"got": {"a": 1}, "known": True},
            {"got": {"b": [None]}, "known": True},
        ]
        (array,) = client.predict([numpy.full((2, 3), 1.5, "f4")])
        assert array.value.dtype == numpy.float32 and (array.value == 3.0).all()
        assert [result.value for result in client.predict(list(range(100)))] == [2 * each for each in range(100)]


def test_a_bad_item_costs_itself(address: str) -> None:
    with InferenceClient(model="Doubler", address=address) as client:
        first, bad, last = client.predict([b"a", b"bad", b"b"])
        assert (first.value, last.value) == (b"a\xff", b"b\xff")
        assert bad.error is not None and bad.error.kind is ErrorKind.REJECTED and "bad" in bad.error.message
        (alone,) = client.predict([b"bad"])
        assert alone.error is not None and alone.error.kind is ErrorKind.REJECTED


def test_another_model_is_not_waited_for(address: str) -> None:
    with InferenceClient(model="Tripler", address=address) as client:
        (result,) = client.predict([1])
    assert result.error is not None and result.error.kind is ErrorKind.NOT_FOUND
    assert 'there is no model "Tripler" here, but Doubler' in result.error.message


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is of POSIX")
def test_a_child_made_by_fork_asks_for_itself(address: str) -> None:
    code = """
import os, sys
from gpufleet.client import InferenceClient
client = InferenceClient(model="Doubler", address=sys.argv[1])
assert client.predict([1])[0].value == 2
child = os.fork()
if child == 0:
    answered = client.predict([21])[0].value == 42
    client.close()
    os._exit(0 if answered else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), client.predict([4])[0].value)
client.close()
"""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "gen")])
    done = subprocess.run(
        [sys.executable, "-c", code, address],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "0 8\n"), done.stderr
