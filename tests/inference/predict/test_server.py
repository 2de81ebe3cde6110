"""The server of a model class, over real HTTP: the protocol's paths, batches over callers, errors, and ends."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference.core.batching import BatchLimits
from inference.predict.predictor import State
from tests.e2e.processes import until
from tests.inference.predict.answers import Answering, Double, Gated, Scarce, answering, floats, gated, tensor

ONE_BY_ONE = BatchLimits(batch_max=1, wait_us=0, waiting_max=3)


async def test_it_says_what_it_is_as_the_protocol_has_it() -> None:
    async with answering("Double") as server:
        assert (await server.ask("/v2")).said["extensions"][0] == "binary_tensor_data"
        assert (await server.ask("/v2/health/live")).status == 200
        assert (await server.ask("/v2/health/ready")).said == {"ready": True}
        for path in ("/v2/models/double", "/v2/models/double/versions/1"):
            said = (await server.ask(path)).said
            assert (said["name"], said["versions"], said["platform"]) == ("double", ["1"], "gpufleet_python")
            assert said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
            assert said["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
            assert said["parameters"]["device"] == "cpu" and said["parameters"]["max_batch"] == 32
            assert (await server.ask(f"{path}/ready")).status == 200


@pytest.mark.parametrize(
    "path, method, status, words",
    [
        ("/v2/models/other", "GET", 404, 'there is no model "other" here, but double'),
        ("/v2/models/other/infer", "POST", 404, 'there is no model "other" here'),
        ("/v2/models/double/versions/2/infer", "POST", 404, 'has no version "2", but 1'),
        ("/v3", "GET", 404, "GET /v2 says what is here"),
        ("/v2/models/double/infer", "GET", 405, "Method Not Allowed"),
    ],
)
async def test_what_is_not_here_is_an_error_that_says_what_is(path: str, method: str, status: int, words: str) -> None:
    async with answering("Double") as server:
        reply = await server.ask(path, method=method)
        assert reply.status == status and words in reply.said["error"]


async def test_items_are_answered_in_json() -> None:
    async with answering("Double") as server:
        reply = await server.infer({"id": "7", **tensor([1, 2, 3, 4, 5, 6], width=3)})
        assert reply.status == 200 and reply.headers["content-type"] == "application/json"
        assert reply.said == {
            "model_name": "double",
            "model_version": "1",
            "id": "7",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": floats(2, 4, 6, 8, 10, 12)}],
        }


async def test_items_are_answered_in_binary_data() -> None:
    async with answering("Double") as server:
        data = np.arange(6, dtype="<f4").tobytes()
        described = {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
        reply = await server.infer(head + data, {"Inference-Header-Content-Length": str(len(head))})
        (output,) = reply.said["outputs"]
        assert output["parameters"] == {"binary_data_size": 24} and "data" not in output
        assert np.frombuffer(reply.binary, "<f4").tolist() == [0, 2, 4, 6, 8, 10]


async def test_an_item_that_the_model_refuses_is_named_and_the_others_have_their_results() -> None:
    async with answering("Double") as server:
        said = (await server.infer(tensor([1, 1, 1, -1, 1, 1, 2, 2, 2], width=3))).said
        assert said["parameters"] == {"errors": {"1": "ValueError: negative"}, "statuses": {"1": 422}}
        assert said["outputs"][0]["data"] == floats(2, 2, 2, 0, 0, 0, 4, 4, 4)
        alone = await server.infer(tensor([-1, 0, 0], width=3))
        assert (alone.status, alone.said) == (422, {"error": "ValueError: negative"})
        none = await server.infer(tensor([-1, 0, 0, -2, 0, 0], width=3))
        assert none.status == 422 and none.said["error"] == "ValueError: negative"
        assert none.said["parameters"]["statuses"] == {"0": 422, "1": 422}


async def test_a_batch_that_raises_costs_the_item_that_is_at_fault_alone() -> None:
    async with answering("Double") as server:
        said = (await server.infer(tensor([1, 1, 1, 666, 1, 1, 2, 2, 2], width=3))).said
        assert said["parameters"]["errors"] == {"1": "RuntimeError: the number of the beast"}
        assert said["parameters"]["statuses"] == {"1": 500}
        assert said["outputs"][0]["data"] == floats(2, 2, 2, 0, 0, 0, 4, 4, 4)


async def test_short_memory_halves_the_batches_and_every_item_has_its_result() -> None:
    async with answering("Scarce") as server:
        reply = await server.infer(tensor(list(range(8)), "INT64"))
        assert (reply.status, reply.said["outputs"][0]["data"]) == (200, list(range(8)))
        assert Scarce.sizes == [8, 4, 2, 2, 4, 2, 2]
        again = await server.infer(tensor(list(range(8)), "INT64"))
        assert again.status == 200 and Scarce.sizes[7:] == [2, 2, 2, 2]
        assert server.predictor.counts.items == {200: 16}


async def test_items_of_several_callers_are_computed_together() -> None:
    gated()
    async with answering("Gated", BatchLimits(batch_max=8, wait_us=0)) as server:
        first = asyncio.create_task(server.infer(tensor([0], "INT64")))
        await until("the first is computed", Gated.began.is_set)
        others = [asyncio.create_task(server.infer(tensor([number], "INT64"))) for number in range(1, 9)]
        await until("the others wait", lambda: server.predictor.batcher.waiting == 8)
        Gated.gate.set()
        replies = await asyncio.gather(first, *others)
        assert [reply.said["outputs"][0]["data"] for reply in replies] == [[number] for number in range(9)]
        assert [len(batch) for batch in Gated.seen] == [1, 8]
        counts = server.predictor.counts
        assert {size: times.count for size, times in counts.batches.items()} == {1: 1, 8: 1}
        assert counts.items == {200: 9}


async def test_too_many_items_are_refused_with_when_to_come_again() -> None:
    gated()
    async with answering("Gated", ONE_BY_ONE) as server:
        first = asyncio.create_task(server.infer(tensor([0], "INT64")))
        await until("the first is computed", Gated.began.is_set)
        waiting = asyncio.create_task(server.infer(tensor([1, 2, 3], "INT64")))
        await until("the others wait", lambda: server.predictor.batcher.waiting == 3)
        refused = await server.infer(tensor([4], "INT64"))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.said["error"] == "3 items wait already, and 3 may"
        large = await server.infer(tensor([1, 2, 3, 4], "INT64"))
        assert large.status == 413 and "at most 3 may wait" in large.said["error"]
        Gated.gate.set()
        assert (await first).status == (await waiting).status == 200


async def test_who_goes_away_frees_its_place_and_is_not_computed() -> None:
    gated()
    async with answering("Gated", ONE_BY_ONE) as server:
        first = asyncio.create_task(server.infer(tensor([0], "INT64")))
        await until("the first is computed", Gated.began.is_set)
        _, writer = await server.send("/v2/models/gated/infer", tensor([1, 2, 3], "INT64"))
        await until("the others wait", lambda: server.predictor.batcher.waiting == 3)
        writer.close()
        await until("their place is free", lambda: server.predictor.batcher.waiting == 0)
        last = asyncio.create_task(server.infer(tensor([4], "INT64")))
        await until("the last one waits", lambda: server.predictor.batcher.waiting == 1)
        Gated.gate.set()
        assert (await first).status == (await last).status == 200
        assert Gated.seen == [[0], [4]]


@pytest.mark.parametrize("header", [True, False])
async def test_a_deadline_is_kept_while_the_model_computes_others(header: bool) -> None:
    gated()
    async with answering("Gated", ONE_BY_ONE) as server:
        first = asyncio.create_task(server.infer(tensor([0], "INT64")))
        await until("the first is computed", Gated.began.is_set)
        body = tensor([1], "INT64")
        if not header:
            body["parameters"] = {"timeout": 50_000}
        late = await server.infer(body, {"X-Request-Timeout-Ms": "50"} if header else None)
        assert (late.status, late.said) == (504, {"error": "its deadline has passed"})
        Gated.gate.set()
        assert (await first).status == 200 and Gated.seen == [[0]]


async def test_a_model_that_hangs_is_answered_for_and_ends_the_replica() -> None:
    gated()
    async with answering("Gated", ONE_BY_ONE) as server:
        asked = [asyncio.create_task(server.infer(tensor([number], "INT64"))) for number in range(2)]
        await until("the first is computed", Gated.began.is_set)
        await until("the other one waits", lambda: server.predictor.batcher.waiting == 1)
        server.predictor.batcher.limits = replace(ONE_BY_ONE, hang_us=100_000)
        server.predictor._stir()
        replies = await asyncio.gather(*asked)
        assert sorted(reply.status for reply in replies) == [500, 503]
        assert {reply.said["error"] for reply in replies} == {
            "the model did not answer within 0.1 s",
            "the model did not answer within 0.1 s, and is started again",
        }
        assert server.predictor.has_ended.is_set() and server.predictor.state is State.HUNG
        for path in ("/v2/health/ready", "/v2/health/live"):
            assert (await server.ask(path)).status == 503
        assert (await server.infer(tensor([0], "INT64"))).status == 503
        Gated.gate.set()
        await until("its thread has ended", lambda: server.predictor.close())


async def test_what_was_taken_in_is_answered_at_the_end_and_nothing_else() -> None:
    gated()
    async with answering("Gated", ONE_BY_ONE) as server:
        first = asyncio.create_task(server.infer(tensor([0], "INT64")))
        await until("the first is computed", Gated.began.is_set)
        server.predictor.end()
        refused = await server.infer(tensor([1], "INT64"))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert (await server.ask("/v2/health/ready")).said["error"] == "the replica is about to end"
        assert (await server.ask("/v2/health/live")).status == 200
        Gated.gate.set()
        assert (await first).status == 200


async def test_texts_bytes_and_values_go_both_ways() -> None:
    async with answering("Echo") as server:

        async def echoed(datatype: str, data: list[Any], **parameters: Any) -> dict[str, Any]:
            body = tensor(data, datatype)
            if parameters:
                body["inputs"][0]["parameters"] = parameters
            (output,) = (await server.infer(body)).said["outputs"]
            found: dict[str, Any] = output
            return found

        assert (await echoed("BYTES", ["a", "ü"]))["data"] == ["a", "ü"]
        raw = base64.b64encode(b"\xff\x00").decode()
        output = await echoed("BYTES", [raw], content_type="base64")
        assert (output["data"], output["parameters"]) == ([raw], {"content_type": "base64"})
        values = [{"a": [1, None]}, ["x"], None]
        output = await echoed("JSON", values)
        assert (output["datatype"], output["data"]) == ("JSON", values)
        output = await echoed("BYTES", [json.dumps(each) for each in values], content_type="json")
        assert output["parameters"] == {"content_type": "json"} and list(map(json.loads, output["data"])) == values
        assert (await echoed("BOOL", [True, False]))["data"] == [True, False]
        assert (await echoed("FP64", [0.5]))["datatype"] == "FP64"

        said = (await server.infer(tensor(["bad", "good"], "BYTES"))).said
        assert said["outputs"][0]["data"] == ["", "good"] and said["parameters"]["errors"] == {
            "0": "ValueError: it is bad"
        }

        body = struct.pack("<I", 2) + b"\xff\x00"
        described = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(body)}}
        head = json.dumps({"inputs": [described], "outputs": [{"name": "output", "parameters": {"binary_data": True}}]})
        reply = await server.infer(head.encode() + body, {"Inference-Header-Content-Length": str(len(head))})
        assert reply.binary == body


async def test_bodies_have_a_bound_and_are_not_compressed() -> None:
    async with answering("Echo", body_max=1_000) as server:
        large = await server.infer(b"x" * 1_001)
        assert large.status == 413 and "more than 1,000 bytes" in large.said["error"]
        packed = await server.infer(b"x", {"Content-Encoding": "gzip"})
        assert packed.status == 415 and packed.said["error"].startswith("Content-Encoding: ")
        wrong = await server.infer(tensor([1], "INT64"), {"X-Request-Timeout-Ms": "soon"})
        assert wrong.status == 400 and wrong.said["error"].startswith("X-Request-Timeout-Ms: ")


async def test_it_is_not_ready_while_the_model_loads_nor_once_it_has_failed() -> None:
    async with answering("Double", ready=False, nothing="1") as server:
        await until("it is loaded", lambda: server.predictor.state is State.READY)
        model: Any = Double
        assert model is not None
    async with answering("Nowhere", ready=False) as server:
        await until("it has failed", lambda: server.predictor.state is State.FAILED)
        reply = await server.ask("/v2/health/ready")
        assert reply.status == 503 and "has no Nowhere" in reply.said["error"]
        assert (await server.infer(tensor([1], "INT64"))).status == 503


async def callers(server: Answering, count: int) -> list[int]:
    replies = await asyncio.gather(*(server.infer(tensor([number] * 3, width=3)) for number in range(count)))
    assert [reply.said["outputs"][0]["data"] for reply in replies] == [floats(*[2 * n] * 3) for n in range(count)]
    return [reply.status for reply in replies]


async def test_many_callers_at_once_each_have_their_own_answer() -> None:
    async with answering("Double", BatchLimits(batch_max=7)) as server:
        assert await callers(server, 50) == [200] * 50
        assert max(server.predictor.counts.batches) <= 7
