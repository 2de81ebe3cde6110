"""Clients of the protocol that know nothing of this server, and gpufleet's own, ask it as they are."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from gpufleet.client import InferenceClient
from tests.e2e.processes import DEADLINE_SECONDS
from tests.inference.predict.answers import answering

TRITON = """
import sys
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

client = triton.InferenceServerClient(sys.argv[1], network_timeout=60, connection_timeout=60)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("double", "1")
assert "statistics" in client.get_server_metadata()["extensions"]
index = client.get_model_repository_index()
assert index == [{"name": "double", "version": "1", "state": "READY", "reason": ""}], index
for version in ("", "1"):
    config = client.get_model_config("double", version)
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}], config
    assert config["max_batch_size"] == 32 and config["dynamic_batching"]["max_queue_delay_microseconds"] == 5_000
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
assert client.get_model_metadata("double")["inputs"][0]["shape"] == [-1, 3]

sent = np.arange(6, dtype=np.float32).reshape(2, 3)
for binary in (True, False):
    tensor = triton.InferInput("x", [2, 3], "FP32")
    tensor.set_data_from_numpy(sent, binary_data=binary)
    wanted = [triton.InferRequestedOutput("y", binary_data=binary)]
    for outputs in (wanted, None):
        result = client.infer("double", [tensor], outputs=outputs, request_id="7", timeout=60_000_000)
        assert (result.as_numpy("y") == 2 * sent).all() and result.get_response()["id"] == "7"

tensor = triton.InferInput("x", [2, 3], "FP32")
tensor.set_data_from_numpy(sent * np.array([[1], [-1]], np.float32))
result = client.infer("double", [tensor])
assert result.get_response()["parameters"]["errors"] == {"1": "ValueError: negative"}
wrong = triton.InferInput("x", [1, 2], "FP32")
wrong.set_data_from_numpy(sent[:1, :2])
try:
    client.infer("double", [wrong])
except InferenceServerException as problem:
    print(problem.message())
tensor.set_data_from_numpy(np.full((2, 3), -1, np.float32))
try:
    client.infer("double", [tensor])
except InferenceServerException as problem:
    assert "negative" in problem.message()
for stats in (client.get_inference_statistics(), client.get_inference_statistics("double", "1")):
    (model,) = stats["model_stats"]
    assert (model["name"], model["inference_count"], model["execution_count"]) == ("double", 9, 6), model
    times = model["inference_stats"]
    assert (times["success"]["count"], times["fail"]["count"], times["queue"]["count"]) == (5, 1, 12), times
    assert times["success"]["ns"] + times["fail"]["ns"] >= times["compute_infer"]["ns"] / 2 > 0
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in model["batch_stats"]] == [(2, 6)]
    assert model["last_inference"] > 1_700_000_000_000
for call in (client.get_model_config, client.get_inference_statistics):
    try:
        call("doubl")
    except InferenceServerException as problem:
        assert 'no model "doubl" here' in problem.message()
    else:
        raise AssertionError(call)
client.close()
"""


@pytest.mark.skipif(importlib.util.find_spec("tritonclient") is None, reason="tritonclient is not installed")
async def test_tritons_client_is_served_as_it_is() -> None:
    async with answering("Double") as server:
        asked = [sys.executable, "-P", "-c", TRITON, f"127.0.0.1:{server.port}"]
        process = await asyncio.create_subprocess_exec(
            *asked, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(2 * DEADLINE_SECONDS):
            said, problem = await process.communicate()
        assert process.returncode == 0, problem.decode()
        assert said.decode().strip() == "input x: has the shape [1, 2], and the model takes [-1, 3]"


async def test_gpufleets_own_client_has_each_items_result_or_error() -> None:
    async with answering("Double") as server:

        def asked() -> None:
            with InferenceClient(model="double", address=f"127.0.0.1:{server.port}") as client:
                items = [np.full(3, number, np.float32) for number in (1, -1, 2)]
                first, second, third = client.predict(items)
            assert first.unwrap().tolist() == [2, 2, 2] and third.unwrap().tolist() == [4, 4, 4]
            assert second.error is not None and second.error.message == "ValueError: negative"
            assert second.error.status == 422 and second.attempts == 1
            assert first.backend == "cpu"

        await asyncio.to_thread(asked)


async def test_gpufleets_own_client_sends_values_of_json() -> None:
    async with answering("Words") as server:

        def asked() -> None:
            with InferenceClient(model="words", address=f"127.0.0.1:{server.port}") as client:
                results = client.predict([{"text": "a b"}, {"text": ""}])
            assert [result.unwrap() for result in results] == [["a", "b"], []]

        await asyncio.to_thread(asked)


def test_the_module_that_starts_the_server_says_what_is_wrong_with_its_flags() -> None:
    command = [sys.executable, "-P", "-m", "gpufleet.inference.predict", "digits", "--max-batch", "many"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 1 and 'MODEL: "digits" is not package.module:Class' in done.stderr
