"""`gpuctl bench-model` and `bench-endpoint` against servers that are known: what is counted, shown and drawn."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from gpufleet.v1 import job_pb2, node_pb2, sessions_pb2

from cli.bench_model.devices import DeviceWatch, readings_of
from gpufleet.security.tokens import make_token
from tests.cli import cluster
from tests.cli.conftest import Result, run_here
from tests.cli.fake_scheduler import FakeScheduler
from tests.client.servers import MODEL, HttpRequest, Server, doubled, rejects, respond, says, serving


async def bench(server: Server, *more: str) -> Result:
    words = ("bench-model", MODEL, "--address", server.address, "--item", "3", "--warm-up", "0")
    return await asyncio.to_thread(run_here, *words, *more)


async def test_a_row_for_each_concurrency_counts_every_request_and_nothing_else() -> None:
    async with serving() as server:
        words = ("--item", "4", "--item", "5", "--requests", "30", "--concurrency", "1,3", "--batch-size", "2")
        done = await bench(server, *words, "--warm-up", "7", "-o", "json")
        told = json.loads(done.text)
        assert len(server.infers) == 2 * (30 + 7) and (done.code, done.err) == (0, "")
        assert {tuple(each.items) for each in server.infers} == {(3, 4), (5, 3), (4, 5)}  # round and round
    assert told["target"] == {"model": MODEL, "url": f"http://{server.address}", "backend": "gpu", "device": "cuda:0"}
    assert [(row["concurrency"], row["requests"], row["items_answered"]) for row in told["rows"]] == [
        (1, 30, 60),
        (3, 30, 60),
    ]
    for row in told["rows"]:
        latency = row["latency_ms"]
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"] and row["success_rate"] == 1.0
        assert row["items_per_s"] == pytest.approx(60 / row["seconds"]) and row["gpu_monitoring"] is None
    assert told["gpu_monitoring"] is None and "without the fleet" in told["gpu_monitoring_note"]
    assert told["loop"] == "closed" and told["batch_size"] == 2 and told["cpu"] is None


async def test_what_fails_is_counted_once_and_never_asked_again() -> None:
    async with serving(says(503), rejects(3), says(500), *[says(429)] * 2) as server:
        done = await bench(server, "--requests", "10", "--concurrency", "1", "-o", "json")
        assert len(server.infers) == 10
        (row,) = json.loads(done.text)["rows"]
        assert done.code == 1 and row["errors"] == {"unavailable": 1, "rejected": 1, "model-failed": 1, "busy": 2}
        assert row["success_rate"] == 0.5 and row["answered"] == 5 and row["error_sentence"] == "scripted 503"
        table = await bench(server, "--requests", "3", "--concurrency", "1")
    assert table.code == 0 and "AT A TIME" in table.text and "100 %" in table.text and "Latencies in ms" in table.text


async def test_items_that_fail_within_an_answer_are_items(tmp_path: Path) -> None:
    async with serving(*[rejects(4)] * 2) as server:
        words = ("--item", "4", "--batch-size", "2", "--requests", "2", "--concurrency", "1", "-o", "jsonl")
        done = await bench(server, *words)
    row = json.loads(done.text)
    assert (row["requests"], row["answered"], row["items"], row["items_answered"]) == (2, 2, 4, 2)
    assert row["errors"] == {"rejected": 2} and done.code == 1


async def test_an_open_loop_sends_what_is_due() -> None:
    async with serving() as server:
        done = await bench(server, "--rate", "500,1000", "--requests", "20", "-o", "json")
        told = json.loads(done.text)
        assert [(row["rate"], row["concurrency"], row["answered"]) for row in told["rows"]] == [
            (500, None, 20),
            (1000, None, 20),
        ]
    assert told["loop"] == "open"
    for row in told["rows"]:  # counted from the first that was sent, which a busy machine sends late
        assert row["seconds"] >= 19 / row["rate"] * 0.99 - row["late_ms_max"] / 1e3


async def test_cpu_workers_are_measured_beside(tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    async with serving() as gpu, serving(device="cpu") as cpu:
        words = ("--requests", "5", "--concurrency", "1,2", "--compare-cpu", "--picture", str(picture))
        done = await bench(gpu, *words, "--address", cpu.address, "-o", "json")  # known by its own word
        told = json.loads(done.text)
        assert (len(gpu.infers), len(cpu.infers)) == (10, 10)
        named = await bench(gpu, *words, "--cpu-address", cpu.address)
        assert "times the items a second" in named.text and named.code == 0
        alone = await bench(cpu, "--compare-cpu")
        assert alone.code == 2 and "computes on a CPU itself" in alone.err
        none = await bench(gpu, "--compare-cpu")
    assert told["cpu"]["target"]["backend"] == "cpu" and len(told["cpu"]["rows"]) == len(told["gpu_to_cpu"]) == 2
    first = told["gpu_to_cpu"][0]
    assert first["items_per_s"] == pytest.approx(told["rows"][0]["items_per_s"] / told["cpu"]["rows"][0]["items_per_s"])
    assert none.code == 3 and f"no CPU worker of {MODEL} is known" in none.err and "gpuctl serve" in none.err
    root = ElementTree.fromstring(picture.read_text())
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"items per second", "latency in ms", "requests under way at a time", "p99", "cpu p95", "1", "2"} <= {*texts}


async def test_a_class_that_is_served_without_gpus_is_found(
    fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_SCHEDULER", fake.address)
    monkeypatch.setenv("GPUCTL_TOKEN", make_token())
    spec = job_pb2.JobSpec(devices=[job_pb2.DeviceRequest(count=1)])
    for name, worker, entry in (
        ("double", spec, "a:B"),
        ("other", job_pb2.JobSpec(), "a:C"),
        ("twin", job_pb2.JobSpec(), "a:B"),
    ):
        http = sessions_pb2.HttpService(
            argv=["python", "-P", "-m", "gpufleet.inference.predict", entry, "--name", name]
        )
        fake.models.append(sessions_pb2.Model(name=name, worker=worker, http=http))
    async with serving() as server:
        asked: list[str] = []

        async def answer(request: HttpRequest, writer: asyncio.StreamWriter) -> None:
            model = request.path.split("/")[2]
            asked.append(model)
            if request.method == "GET":
                device = "cpu" if model == "twin" else "cuda:0"
                said = {"name": model, "inputs": [{"name": "x", "datatype": "FP64"}], "parameters": {"device": device}}
                await respond(writer, 200, said)
            else:
                await respond(writer, 200, doubled(request.items))

        monkeypatch.setattr(server, "answer", answer)
        words = ("bench-model", "double", "--item", "1", "--requests", "2", "--concurrency", "1", "--compare-cpu")
        done = await asyncio.to_thread(run_here, *words, "--gateway", f"http://{server.address}", "-o", "json")
    told = json.loads(done.text)
    assert told["cpu"]["target"]["model"] == "twin" and set(asked) == {"double", "twin"}


async def test_what_was_typed_wrong_is_told_and_nothing_is_sent(tmp_path: Path) -> None:
    async with serving() as server:
        for words, code, said in (
            (("--requests", "1", "--duration", "1s"), 2, "--requests: --duration says"),
            (("--duration", "1ms"), 2, "from 100ms to 1h"),
            (("--concurrency", "1,x"), 2, '"x" is not a number'),
            (("--concurrency", "0"), 2, "0 is not from 1 to 1,000"),
            (("--rate", "5", "--concurrency", "2"), 2, "for a closed loop"),
            (("--rate", "nan"), 2, "nan is not from"),
            (("--picture", "out.png"), 2, "is no .svg"),
            (("--picture", "no/out.svg"), 3, "no folder no"),
            (("none.jpg",), 3, "there is no file or folder"),
            (("--text", "a", "--item", '{"a": 1}'), 2, "cannot be sent"),
        ):
            done = await bench(server, *words)
            assert done.code == code and said in done.err, (words, done.err)
        assert not server.infers


async def test_an_endpoint_is_measured_by_get_or_post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:

        async def answer(request: HttpRequest, writer: asyncio.StreamWriter) -> None:
            server.requests.append(request)
            await respond(writer, 404 if "missing" in request.path else 204 if not request.body else 200, {})

        monkeypatch.setattr(server, "answer", answer)
        url = f"http://{server.address}/a/b?c=d"
        few = ("--requests", "4", "--concurrency", "2", "--warm-up", "0", "-o", "json")

        async def endpoint(*words: str) -> Result:
            return await asyncio.to_thread(run_here, "bench-endpoint", *words, *few)

        done = await endpoint(url, "-H", "X-Some: thing")
        told = json.loads(done.text)
        assert done.code == 0 and told["rows"][0]["success_rate"] == 1.0 and told["target"] == {"url": url}
        assert len(server.requests) == 4
        last = server.requests[-1]
        assert (last.method, last.path, last.headers["x-some"]) == ("GET", "/a/b?c=d", "thing")
        assert "authorization" not in last.headers
        (tmp_path / "body").write_bytes(b"\0\xff")
        monkeypatch.setenv("GPUCTL_TOKEN", token := make_token())
        assert (await endpoint(url, "--data", f"@{tmp_path}/body", "--send-token")).code == 0
        last = server.requests[-1]
        assert (last.method, last.body, last.headers["authorization"]) == ("POST", b"\0\xff", f"Bearer {token}")
        done = await endpoint(f"http://{server.address}/missing")
        assert done.code == 1 and json.loads(done.text)["rows"][0]["errors"] == {"status 404": 4}
        count = len(server.requests)
        for words, code, said in (
            (("ftp://x/",), 2, "neither http nor https"),
            ((url, "-H", "nonsense"), 2, "is not NAME: VALUE"),
            ((url, "-H", "Host: x"), 2, "gpuctl says itself"),
            ((url, "-H", "X-A: b\r\nX-C: d"), 2, "is not NAME: VALUE"),
            (("http://192.0.2.1/", "--send-token"), 4, "without encryption"),
            ((url, "--data", "@none"), 3, "--data: none cannot be read"),
            ((f"{url} x",), 2, "what no URL may"),
        ):
            done = await endpoint(*words)
            assert done.code == code and said in done.err, (words, done.err)
        assert len(server.requests) == count


def test_devices_of_the_models_jobs_are_read_and_old_readings_are_not() -> None:
    def device(uuid: str, job: int = 0, *shares: int, age_s: int = 1) -> node_pb2.NodeDevice:
        said = node_pb2.NodeDevice(node="n1", job_id=job, device=node_pb2.Device(uuid=uuid, name="H200"))
        said.shares.extend(node_pb2.HeldShare(job_id=each) for each in shares)
        said.sample.age.FromSeconds(age_s)
        said.sample.utilization_percent, said.sample.power_mw = 40, 250_000
        return said

    devices = [device("a", 7), device("b", 8), device("c", 0, 8, 9), device("d", 7, age_s=60)]
    found = {each.uuid: each.values for each in readings_of(devices, frozenset({7, 9}))}
    assert found.keys() == {"a", "c", "d"} and found["d"]["utilization_percent"] is None
    assert found["a"] == {"utilization_percent": 40, "power_w": 250, "memory_used_bytes": None, "temperature_c": None}


async def test_what_the_fleet_says_of_the_replicas_gpus_is_in_the_result(
    fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_SCHEDULER", fake.address)
    monkeypatch.setattr("cli.bench_model.devices.LOOK_EVERY_S", 0.005)
    looked = threading.Event()
    look = DeviceWatch.look

    def noted(watch: DeviceWatch) -> None:
        look(watch)
        if watch.row() is not None:
            looked.set()

    monkeypatch.setattr(DeviceWatch, "look", noted)
    fake.nodes = cluster.nodes()[:1]
    busy: Any = next(each for node in fake.nodes for each in node.devices if each.job_id)
    busy.sample.utilization_percent, busy.sample.temperature_c = 70, 55
    fake.models = [sessions_pb2.Model(name=MODEL, workers=[sessions_pb2.WorkerInfo(job_id=busy.job_id)])]

    async def when_looked(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        looked.clear()  # what was seen before the row counts for nothing
        await asyncio.to_thread(looked.wait)
        await respond(writer, 200, doubled(request.items))

    async with serving(when_looked, prefix=f"/m/{MODEL}") as server:
        words = ("bench-model", MODEL, "--item", "1", "--requests", "1", "--concurrency", "1", "--warm-up", "0")
        done = await asyncio.to_thread(run_here, *words, "--gateway", f"http://{server.address}", "-o", "json")
        told = json.loads(done.text)
        table = await asyncio.to_thread(run_here, *words, "--gateway", f"http://{server.address}")
    assert done.code == 0 and told["gpu_monitoring_note"] == ""
    for part in (told["gpu_monitoring"], told["rows"][0]["gpu_monitoring"]):
        mine = next(each for each in part["devices"] if each["uuid"] == busy.device.uuid)
        assert mine["utilization_percent"] == {"mean": 70.0, "max": 70.0} and mine["temperature_c"]["max"] == 55.0
    assert table.code == 0
