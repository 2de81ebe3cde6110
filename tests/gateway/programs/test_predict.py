"""A class that answers requests, through everything: `gpuctl serve --predict`, a replica, the gateway, and a caller."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpufleet.v1 import scheduler_pb2

from gpufleet.client import InferenceClient
from gpufleet.net.addresses import parse_address
from gpufleet.runtimes.probe import one_node_model
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


TRITON = """
import asyncio, queue, sys
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

address, token = sys.argv[1:]
headers = {"authorization": "Bearer " + token}
with triton.InferenceServerClient(address) as client:
    assert client.is_server_live() and client.is_server_ready()
    assert [each.name for each in client.get_model_repository_index(headers=headers).models] == ["scaled"]
    assert client.is_model_ready("scaled", "1", headers=headers)
    assert client.get_server_metadata().name == "gpufleet"
    described = client.get_model_metadata("scaled", headers=headers, as_json=True)
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "2"]}]
    x = triton.InferInput("x", [2, 2], "FP32")
    x.set_data_from_numpy(np.array([[1, 2], [-3, 4]], np.float32))
    for outputs in (None, [triton.InferRequestedOutput("y")]):
        result = client.infer(
            "scaled", [x], outputs=outputs, headers=headers, request_id="7", timeout=60_000_000, client_timeout=60
        )
        answer = result.get_response()
        assert result.as_numpy("y").tolist() == [[2.5, 5], [0, 0]] and answer.id == "7"
        assert answer.parameters["errors"].string_param == '{"1":"ValueError: below zero"}'
        assert answer.parameters["statuses"].string_param == '{"1":422}'
    assert (result.as_numpy("pid") is None) and len(answer.outputs) == 1

    wrong = triton.InferInput("x", [1, 3], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
    bad = triton.InferInput("x", [1, 2], "FP32")
    bad.set_data_from_numpy(np.full((1, 2), -1, np.float32))
    for told, call in (
        ("UNAUTHENTICATED", lambda: client.infer("scaled", [x])),
        ("UNAUTHENTICATED", lambda: client.infer("scaled", [x], headers={"authorization": "Bearer gf_" + "x" * 43})),
        ("UNAUTHENTICATED", lambda: client.get_model_repository_index()),
        ("NOT_FOUND", lambda: client.infer("scald", [x], headers=headers)),
        ("NOT_FOUND", lambda: client.infer("scaled", [x], model_version="9", headers=headers)),
        ("INVALID_ARGUMENT", lambda: client.infer("scaled", [wrong], headers=headers)),
        ("INVALID_ARGUMENT", lambda: client.infer("scaled", [bad], headers=headers)),
        ("INVALID_ARGUMENT", lambda: client.infer("scaled", [x], sequence_id=3, headers=headers)),
        ("NOT_FOUND", lambda: client.get_model_config("scald", headers=headers)),
        ("NOT_FOUND", lambda: client.get_inference_statistics("", headers=headers)),
        ("UNIMPLEMENTED", lambda: client.get_trace_settings("scaled", headers=headers)),
    ):
        try:
            call()
        except InferenceServerException as problem:
            assert problem.status() == "StatusCode." + told, problem
        else:
            raise AssertionError(told)

    config = client.get_model_config("scaled", headers=headers).config
    assert (config.name, config.max_batch_size, config.backend) == ("scaled", 8, "python")
    assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == [("x", 11, [2])]
    assert [each.name for each in config.output] == ["y", "pid"] and config.parameters["max_items"].string_value
    (stats,) = client.get_inference_statistics("scaled", "1", headers=headers).model_stats
    assert stats.inference_count == 3 and stats.execution_count == 4 == sum(
        each.compute_infer.count for each in stats.batch_stats
    )
    assert stats.inference_stats.success.count == 3 and stats.inference_stats.fail.count == 1

    # A stream: answers and errors in the order of the requests, and its end once all are answered.
    got = queue.Queue()
    client.start_stream(lambda result, error: got.put((result, error)), headers=headers)
    for number in range(100):
        each = {3: wrong, 4: bad}.get(number % 10, x)
        client.async_stream_infer("scald" if number == 50 else "scaled", [each], request_id=str(number),
                                  enable_empty_final_response=number == 0)
    client.stop_stream()
    for number in range(100):
        result, error = got.get_nowait()
        if number % 10 in (3, 4) or number == 50:
            assert result is None and f"[request id: {number}]" in error.message(), (number, error)
        else:
            assert error is None and result.get_response().id == str(number), (number, error)
            assert result.as_numpy("y").tolist() == [[2.5, 5], [0, 0]]
            assert ("triton_final_response" in result.get_response().parameters) == (number == 0)
    assert got.empty()

async def at_once():
    async with triton_aio.InferenceServerClient(address) as client:
        assert await client.is_model_ready("scaled", headers=headers)
        found = await asyncio.gather(*(client.infer("scaled", [x], headers=headers) for _ in range(20)))
        assert all(each.as_numpy("y").tolist() == [[2.5, 5], [0, 0]] for each in found)

        async def requests():
            for number in range(5):
                yield {"model_name": "scaled", "inputs": [x], "request_id": str(number)}

        answers = [each async for each in client.stream_infer(requests(), headers=headers)]
        assert [each.get_response().id for each, error in answers if error is None] == list("01234")

asyncio.run(at_once())
"""

STATISTICS = """
import sys
import tritonclient.grpc as triton

address, token = sys.argv[1:]
with triton.InferenceServerClient(address) as client:
    said = client.get_inference_statistics("counted", headers={"authorization": "Bearer " + token})
print(*(each.inference_stats.success.count for each in said.model_stats))
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


def by_triton(program: str, address: str, token: str) -> str:
    """What a program with Triton's client prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, address, token],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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

    # Another project's client asks over gRPC as it is.
    with long_lived("a gateway with a port for gRPC"):
        await stage.another_gateway("gateway-grpc", "--grpc-port", "0").address()
    address = (stage.folder / "gateway-grpc" / "listening.grpc").read_text().strip()
    await asyncio.to_thread(by_triton, TRITON, address, created.secret)

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


async def test_a_file_of_onnx_is_served_and_asked_through_the_gateway(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    with long_lived("another node with its replicas"):
        await stage.fleet.add_node("n2")
    (tmp_path / "twice.onnx").write_bytes(one_node_model())
    async with stage.fleet.client() as admin:
        created = await admin.stub.CreateToken(
            scheduler_pb2.CreateTokenRequest(user="ada", role=scheduler_pb2.ROLE_USER)
        )
    token = created.secret
    words = ("serve", "gpufleet.onnx:OnnxModel", "--predict", "--name", "twice", "--model-arg", "file=twice.onnx")
    assert "model twice is ready" in await asyncio.to_thread(gpuctl, stage, tmp_path, *words)

    _, said = await asyncio.to_thread(ask, stage.gateway, token, "/m/twice/v2/models/twice")
    (computes,) = said["parameters"]["runtimes"]
    assert (computes["name"], computes["provider"]) == ("onnxruntime", "cpu") and computes["device_name"]

    def asked(model: str, items: list[Any]) -> list[Any]:
        with InferenceClient(model=model, gateway=f"http://{stage.gateway}", token=token) as client:
            return [each.value if each.is_ok else each.error for each in client.predict(items)]

    assert await asyncio.to_thread(asked, "twice", [np.float32(1), np.float32(-4)]) == [2.0, -8.0]
    await asyncio.to_thread(gpuctl, stage, tmp_path, "serve", "twice", "--stop")


async def test_statistics_are_those_of_all_replicas_and_tritons_client_reads_them(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]], tmp_path: Path
) -> None:
    with long_lived("a node with two replicas, and a gateway with a port for gRPC"):
        await stage.fleet.add_node("n3")
        await stage.another_gateway("gateway-counting", "--grpc-port", "0").address()
    address = (stage.folder / "gateway-counting" / "listening.grpc").read_text().strip()
    (tmp_path / "scaled.py").write_text(CLASS)
    async with stage.fleet.client() as admin:
        created = await admin.stub.CreateToken(
            scheduler_pb2.CreateTokenRequest(user="eve", role=scheduler_pb2.ROLE_USER)
        )
    words = ("serve", "scaled:Scaled", "--predict", "--name", "counted", "--min", "2", "--max", "2")
    await asyncio.to_thread(gpuctl, stage, tmp_path, *words)

    async def asked(path: str, body: object = None) -> Any:
        status, said = await asyncio.to_thread(ask, stage.gateway, created.secret, f"/m/counted/v2{path}", body)
        assert status == 200, said
        return said

    requests_by_pid: Counter[int] = Counter()

    async def both_have_computed() -> bool:
        said = await asked("/models/counted/infer", tensor(1, 2, 3, 4))
        requests_by_pid[said["outputs"][1]["data"][0]] += 1
        return len(requests_by_pid) == 2 and min(requests_by_pid.values()) > 1

    await until("both replicas have computed", both_have_computed)
    count = requests_by_pid.total()
    (model,) = (await asked("/models/counted/stats"))["model_stats"]
    assert (model["name"], model["version"], model["inference_count"]) == ("counted", "1", 2 * count)
    assert model["inference_stats"]["success"]["count"] == count and model["last_inference"] > 0
    assert sum(each["compute_infer"]["count"] for each in model["batch_stats"]) == model["execution_count"] == count
    assert (await asked("/models/stats"))["model_stats"][0]["inference_count"] == 2 * count
    assert (await asyncio.to_thread(by_triton, STATISTICS, address, created.secret)).split() == [str(count)]
    await asyncio.to_thread(gpuctl, stage, tmp_path, "serve", "counted", "--stop")
