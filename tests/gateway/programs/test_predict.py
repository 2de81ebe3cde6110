"""A class that answers requests, through everything: `gpuctl serve --predict`, a replica, the gateway, and a caller."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import scheduler_pb2

from gpufleet.net.addresses import parse_address
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.gateway.stage import Stage

pytestmark = pytest.mark.slow

CLASS = """
import os
import numpy as np
from gpufleet.predict import TensorSpec

class Scaled:
    inputs = [TensorSpec("x", "FP32", (2,))]
    outputs = [TensorSpec("y", "FP32", (2,)), TensorSpec("pid", "INT64")]

    def load(self, device: str, by: float = 1.0):
        self.by = by

    def predict(self, items):
        for item in items:
            if item[0] == -9:
                os._exit(7)
        scaled = self.by * np.stack(items)
        return [ValueError("below zero") if y.min() < 0 else {"y": y, "pid": os.getpid()} for y in scaled]
"""


def ask(gateway: str, token: str, path: str, body: object = None) -> tuple[int, Any]:
    """The status and the JSON, by a client of the standard library."""
    address = parse_address(gateway)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=DEADLINE_SECONDS)
    try:
        headers = {"Authorization": f"Bearer {token}"}
        sent = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, body=sent, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def tensor(*data: float) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [len(data) // 2, 2], "datatype": "FP32", "data": list(data)}]}


def gpuctl(stage: Stage, folder: Path, *arguments: str) -> str:
    """What the command prints; it must succeed."""
    said = {"GPUCTL_SCHEDULER": stage.fleet.scheduler.address, "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gpufleet.cli", *arguments, "--token-file", stage.token_file("admin")],
        cwd=folder,
        env=clean_environment(folder, said),
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_class_answers_at_the_gateway_and_a_dead_replica_is_replaced(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]], tmp_path: Path
) -> None:
    with long_lived("a node with its replicas"):
        await stage.fleet.add_node("n1")
    (tmp_path / "scaled.py").write_text(CLASS)
    async with stage.fleet.client() as admin:
        created = await admin.stub.CreateToken(
            scheduler_pb2.CreateTokenRequest(user="ann", role=scheduler_pb2.ROLE_USER)
        )
    words = ("serve", "scaled:Scaled", "--predict", "--model-arg", "by=2.5", "--max-batch", "8", "--name", "scaled")
    shown = await asyncio.to_thread(gpuctl, stage, tmp_path, *words)
    assert "model scaled is ready: 1 replica, at the gateway under /m/scaled/" in shown

    async def asked(path: str, body: object = None) -> tuple[int, Any]:
        return await asyncio.to_thread(ask, stage.gateway, created.secret, f"/m/scaled{path}", body)

    status, said = await asked("/v2/models/scaled")
    assert status == 200 and said["parameters"]["max_batch"] == 8

    status, said = await asked("/v2/models/scaled/infer", tensor(1, 2, -3, 4))
    assert status == 200 and said["parameters"]["errors"] == {"1": "ValueError: below zero"}
    assert said["outputs"][0]["data"] == [2.5, 5.0, 0.0, 0.0]
    first = said["outputs"][1]["data"][0]

    # A replica that an item ends costs those who ask at that moment; later requests reach another one.
    status, _ = await asked("/v2/models/scaled/infer", tensor(-9, 0))
    assert status == 502

    async def is_answered() -> bool:
        nonlocal status, said
        status, said = await asked("/v2/models/scaled/infer", tensor(1, 2))
        return status == 200

    await until("another replica answers", is_answered)
    assert said["outputs"][1]["data"][0] != first
    await asyncio.to_thread(gpuctl, stage, tmp_path, "serve", "scaled", "--stop")
