"""The clients against real servers on loopback, most of which misbehave."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from gpufleet.client import AsyncInferenceClient, Backend, ErrorKind, InferenceClient, InferenceFailed, Result
from gpufleet.client.protocol import JSON_LENGTH_HEADER
from gpufleet.security.tokens import make_token
from tests.client.servers import (
    MODEL,
    HttpRequest,
    Script,
    Server,
    closes,
    closes_early,
    doubles,
    garbage,
    never_answers,
    no_http,
    rejects,
    respond,
    says,
    send,
    serving,
    too_few,
)

QUICK: dict[str, Any] = {"model": MODEL, "backoff_first_s": 0.001, "backoff_max_s": 0.01}
"""Pauses that a test need not wait for."""


def client(*servers: Server, **given: Any) -> AsyncInferenceClient:
    return AsyncInferenceClient(addresses=[server.address for server in servers], **(QUICK | given))


def values(results: list[Result]) -> list[Any]:
    return [result.value if result.is_ok else result.error and result.error.kind for result in results]


async def test_items_are_answered_in_order_over_kept_connections() -> None:
    async with serving() as server, client(server, batch_size=3) as asking:
        results = await asking.predict(list(range(20)))
        assert values(results) == [2 * number for number in range(20)]
        assert {result.backend for result in results} == {Backend.GPU}
        assert results[0].worker == f"http://{server.address}"
        assert len(server.infers) == 7 and len(server.open) <= asking.settings.concurrency + 1
        assert "authorization" not in server.infers[0].headers


@pytest.mark.parametrize("script", [closes, closes_early, says(502), says(503), says(504), says(429)])
async def test_what_fails_for_a_moment_is_asked_again(script: Script) -> None:
    async with serving(script, script) as server, client(server) as asking:
        (result,) = await asking.predict([4])
        assert (result.value, len(server.infers)) == (8, 3)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (garbage, ErrorKind.BAD_ANSWER),
        (no_http, ErrorKind.BAD_ANSWER),
        (too_few, ErrorKind.BAD_ANSWER),
        (says(500), ErrorKind.MODEL_FAILED),
        (says(400), ErrorKind.REJECTED),
        (says(401), ErrorKind.DENIED),
        (says(404), ErrorKind.NOT_FOUND),
    ],
)
async def test_what_would_fail_again_is_not_asked_again(script: Script, kind: ErrorKind) -> None:
    async with serving(*[script] * 9) as server, client(server) as asking:
        (result,) = await asking.predict([4])
        assert result.error is not None and (result.error.kind, result.attempts) == (kind, 1)
        assert len(server.infers) == 1


@pytest.mark.parametrize("script", [too_few, garbage, says(500), says(400)])
async def test_a_batch_that_fails_is_taken_apart_once(script: Script) -> None:
    async with serving(script, rejects(2, 400), rejects(2, 400), rejects(2, 400)) as server, client(server) as asking:
        assert values(await asking.predict([1, 2, 3])) == [2, ErrorKind.REJECTED, 6]
        assert sorted(request.items for request in server.infers[1:]) == [[1], [2], [3]]


async def test_errors_of_single_items_are_theirs_alone() -> None:
    async with serving(rejects(2), rejects(5)) as server, client(server, batch_size=4) as asking:
        results = await asking.predict([1, 2, 3, 4, 5, 5, 5, 5])
        assert values(results) == [2, ErrorKind.REJECTED, 6, 8] + [ErrorKind.REJECTED] * 4
        assert results[1].error is not None and results[1].error.message == "ValueError: bad"
        assert results[1].error.status == 422 and len(server.infers) == 2
        with pytest.raises(InferenceFailed, match="ValueError: bad"):
            results[1].unwrap()


async def test_items_that_could_not_be_answered_now_are_asked_again_alone() -> None:
    async with serving(rejects(2, 503)) as server, client(server) as asking:
        assert values(await asking.predict([1, 2, 3])) == [2, 4, 6]
        assert [request.items for request in server.infers] == [[1, 2, 3], [2]]


async def test_a_worker_that_never_answers_is_given_up_and_the_other_one_asked() -> None:
    given = {"timeout_s": 1, "batch_size": 1, "concurrency": 1}
    async with serving(*[never_answers] * 99) as one, serving() as other, client(one, other, **given) as asking:
        assert values(await asking.predict([1, 2, 3, 4])) == [2, 4, 6, 8]
        assert one.infers and len(other.infers) >= 4


async def test_the_deadline_ends_everything() -> None:
    async with serving(*[never_answers] * 9) as server, client(server) as asking:
        (result,) = await asking.predict([1], deadline_s=0.3)
        assert result.error is not None and result.error.kind is ErrorKind.DEADLINE


async def test_one_of_two_dies_under_load_and_nothing_is_lost() -> None:
    async def dies(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        server.die()

    given = {"batch_size": 5, "concurrency": 2}
    async with serving(doubles, doubles, dies) as one, serving() as other, client(one, other, **given) as asking:
        results = await asking.predict(list(range(300)))
        assert values(results) == [2 * number for number in range(300)]
        metrics = await asking.metrics()
        died = next(worker for worker in metrics.workers if worker.worker == f"http://{one.address}")
        assert died.condition == "unreachable" and metrics.figures.retries > 0
        assert metrics.figures.success_rate == 1.0 and metrics.as_dict()["workers"][0]["circuit"] == "closed"


async def test_retry_after_is_honoured() -> None:
    async with serving(says(429, retry_after="1")) as server, client(server) as asking:
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        assert values(await asking.predict([1])) == [2]
        assert loop.time() - before_s >= 1.0


async def test_a_worker_that_starts_is_waited_for() -> None:
    async with serving(ready_status=503) as server, client(server) as asking:
        asked = asyncio.create_task(asking.predict([1]))
        await server.asked(0)
        assert not server.infers
        server.ready_status = 200
        assert values(await asked) == [2]


async def test_gpu_then_cpu_then_the_callable_and_the_result_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def by_hand(items: list[int]) -> list[int]:
        return [item * 2 for item in items]

    async with serving(ready_status=404) as gpu, serving(device="cpu") as cpu:
        async with client(gpu, cpu, fallback=by_hand) as asking:
            with caplog.at_level(logging.WARNING, "gpufleet.client"):
                results = await asking.predict(list(range(40)))
            assert {(result.backend, result.is_fallback) for result in results} == {(Backend.CPU, True)}
            assert f"http://{gpu.address} is refused (status 404 not ready)" in results[0].fallback_reason
            assert "100.0 % of the items were answered by a fall-back" in caplog.text
            cpu.die()
        async with client(gpu, cpu, fallback=by_hand, start_wait_s=0) as asking:
            results = await asking.predict([1, 2])
            assert values(results) == [2, 4]
            assert {(result.backend, result.worker) for result in results} == {(Backend.CALLABLE, "callable")}


async def test_a_callable_may_be_a_coroutine_and_its_failures_are_each_items_own() -> None:
    async def by_hand(items: list[int]) -> list[int]:
        if 2 in items:
            raise ValueError("two")
        return [item * 2 for item in items]

    async with AsyncInferenceClient(fallback=by_hand, backend="callable") as asking:
        results = await asking.predict([1, 2, 3])
        assert values(results) == [2, ErrorKind.MODEL_FAILED, 6]
        assert results[1].error is not None and "ValueError: two" in results[1].error.message


async def test_arrays_travel_as_binary_data_and_come_back_as_arrays() -> None:
    async def negates(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        length = int(request.headers[JSON_LENGTH_HEADER.lower()])
        data = -numpy.frombuffer(request.body[length:], "<f4")
        head = (
            b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 2, 3],'
            b' "parameters": {"binary_data_size": 48}}]}'
        )
        await send(writer, 200, head + data.tobytes(), **{JSON_LENGTH_HEADER.replace("-", "_"): str(len(head))})

    items = [numpy.arange(6, dtype=">f4").reshape(2, 3), numpy.ones((2, 3), ">f4")]
    async with serving(negates) as server, client(server) as asking:
        results = await asking.predict(items)
        for item, result in zip(items, results, strict=True):
            assert (result.value == -item).all() and result.value.dtype == numpy.float32


async def test_a_cancelled_call_ends_its_requests() -> None:
    async with serving(never_answers, never_answers) as server, client(server) as asking:
        asked = asyncio.create_task(asking.predict([1]))
        await server.asked()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        metrics = await asking.metrics()
        assert metrics.workers[0].requests_under_way == 0


async def test_a_closed_client_says_so_to_those_that_wait_and_to_those_that_come() -> None:
    async with serving(never_answers) as server:
        asking = client(server)
        asked = asyncio.create_task(asking.predict([1]))
        await server.asked()
        await asking.close()
        for awaited in (asked, asking.predict([1])):
            with pytest.raises(InferenceFailed, match="closed"):
                await awaited


@pytest.mark.parametrize("in_order", [True, False])
async def test_a_stream_holds_a_few_batches_and_answers_every_item(in_order: bool) -> None:
    read = 0

    def numbers() -> Iterator[int]:
        nonlocal read
        for number in range(1_000):
            read += 1
            yield number

    async with serving() as server, client(server, batch_size=10, stream_batches=3) as asking:
        found = []
        async for result in asking.stream(numbers(), in_order=in_order):
            found.append(result)
            assert read <= len(found) + 10 * 3 + 10
        assert sorted((result.index, result.value) for result in found) == [(each, 2 * each) for each in range(1_000)]
        if in_order:
            assert [result.index for result in found] == list(range(1_000))


async def test_a_gateway_is_given_the_token_and_its_prefix() -> None:
    token = make_token()
    async with serving(prefix=f"/m/{MODEL}") as server:
        async with AsyncInferenceClient(model=MODEL, gateway=f"http://{server.address}", token=token) as asking:
            assert values(await asking.predict([1])) == [2]
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {token}"}


async def test_a_gateway_that_has_a_cpu_answer_says_why_and_the_result_does() -> None:
    async def falls_back(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        document = {"outputs": [{"name": "y", "datatype": "INT64", "shape": [1], "data": [4]}]}
        said = {"parameters": {"device": "cpu"}, **document}
        await respond(writer, 200, said, Gpufleet_Fell_Back="GPU_QUEUE_LONG")

    async with serving(falls_back, prefix=f"/m/{MODEL}") as server:
        gateway, token = f"http://{server.address}", make_token()
        async with AsyncInferenceClient(model=MODEL, gateway=gateway, token=token, gpu_mode="preferred") as asking:
            (result,) = await asking.predict([2])
            assert (result.value, result.backend, result.is_fallback) == (4, Backend.CPU, True)
            assert "GPU_QUEUE_LONG" in result.fallback_reason
            figures = (await asking.metrics()).figures
            assert (figures.fallback_share, figures.gpu_share) == (1.0, 0.0)
        assert {request.headers.get("gpufleet-gpu-mode") for request in server.requests} == {"preferred"}


async def test_an_answer_beyond_its_bound_is_refused() -> None:
    async def floods(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        await send(writer, 200, b" " * 100_000)

    async with serving(floods) as server, client(server, answer_bytes_max=10_000) as asking:
        (result,) = await asking.predict([1])
        assert result.error is not None and "larger than answer_bytes_max" in result.error.message


async def test_many_calls_at_a_time_share_the_workers() -> None:
    async with serving() as server, client(server, batch_size=2, concurrency=2) as asking:
        answered = await asyncio.gather(*(asking.predict([number] * 5) for number in range(40)))
        assert [values(results) for results in answered] == [[2 * number] * 5 for number in range(40)]


# --- the client for threads


async def test_the_sync_client_does_the_same_and_leaves_no_thread() -> None:
    async with serving(says(503)) as server:

        def work() -> None:
            with InferenceClient(address=server.address, **QUICK) as asking:
                assert values(asking.predict([1, 2])) == [2, 4]
                assert [result.value for result in asking.stream(iter(range(100)))] == [2 * each for each in range(100)]
                assert asking.metrics().figures.answered == 102
            with pytest.raises(InferenceFailed, match="closed"):
                asking.predict([1])

        await asyncio.to_thread(work)


async def test_the_sync_client_serves_several_threads_and_ends_with_its_last_holder() -> None:
    async with serving() as server:
        asking = InferenceClient(address=server.address, **QUICK)
        found = await asyncio.gather(*(asyncio.to_thread(asking.predict, [number]) for number in range(12)))
        assert [values(results) for results in found] == [[2 * number] for number in range(12)]
        del asking  # tests/conftest.py looks whether its thread has ended


def test_a_callable_that_ends_the_program_costs_its_items() -> None:
    def leaves(items: list[int]) -> list[int]:
        if 2 in items:
            sys.exit(3)
        return items

    asking = InferenceClient(fallback=leaves, backend="callable")
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.extend(asking.predict([1, 2])), daemon=True)
    thread.start()
    thread.join(60.0)
    assert values(found) == [1, ErrorKind.MODEL_FAILED]
    asking.close()


def test_a_stream_of_a_client_that_is_closed_says_so() -> None:
    asking = InferenceClient(fallback=list, backend="callable", batch_size=1, stream_batches=2)
    stream = asking.stream(iter(range(100)))
    assert next(stream).value == 0
    asking.close()
    with pytest.raises(InferenceFailed, match="closed"):
        list(stream)


def test_whoever_asks_as_the_loop_ends_is_told() -> None:
    asking = InferenceClient(fallback=list, backend="callable")
    assert values(asking.predict([1])) == [1]
    here = asking._here()
    begin = threading.Event()
    here.loop.call_soon_threadsafe(begin.wait, 60.0)
    here.loop.call_soon_threadsafe(here.loop.stop)
    asked = here.start(asyncio.sleep(3_600.0))
    begin.set()
    with pytest.raises(InferenceFailed, match="closed"):
        here.result(asked)
    here.thread.join(60.0)  # in the moment before its loop is closed, what is begun would be lost
    asking.close()


def test_an_authority_that_is_not_there_leaves_no_thread(tmp_path: Path) -> None:
    asking = InferenceClient(model=MODEL, address="https://127.0.0.1:1", ca_file=tmp_path / "none.pem")
    before = threading.active_count()
    with pytest.raises(FileNotFoundError):
        asking.predict([1])
    assert threading.active_count() == before
    asking.close()


async def test_a_stream_that_is_left_early_ends_what_it_asked() -> None:
    async with serving() as server:

        def work() -> None:
            with InferenceClient(address=server.address, batch_size=1, **QUICK) as asking:
                stream = asking.stream(itertools.count())
                assert [next(stream).value for _ in range(5)] == [0, 2, 4, 6, 8]

        await asyncio.to_thread(work)


def test_a_port_where_nobody_listens_is_told() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with InferenceClient(address=address, start_wait_s=0, **QUICK) as asking:
            (result,) = asking.predict([1])
    assert result.error is not None and result.error.kind is ErrorKind.NO_WORKER
    assert f"http://{address} is unreachable" in result.error.message


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_INFERENCE_MODEL", MODEL)
    monkeypatch.setenv("GPUFLEET_INFERENCE_ADDRESSES", "127.0.0.1:1,127.0.0.1:2")
    with InferenceClient() as asking:
        assert asking.settings.addresses == ("127.0.0.1:1", "127.0.0.1:2")
