"""Whether a request goes to a program or to its CPU model: what decides, and the way of a request through a gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest
from gpufleet.v1 import job_pb2, sessions_pb2

from gateway.proxy import counting
from gateway.proxy.core.gpu_choice import BadMode, GpuMode, Line, Routing, choose, mode_for, mode_of, path_at
from scheduler.policy.routing import pattern_for
from scheduler.state.limits import GpuRouting
from tests.e2e.processes import until
from tests.gateway.proxy.stage import Call, Replica, Stage, asked, program, stage

ROUTING = Routing(modes={"image/*": GpuMode.PREFERRED, "*": GpuMode.NEVER}, gpu_wait_s=60.0, gpu_queue_limit=2)


@pytest.mark.parametrize(
    ("asked", "default", "content_type", "line", "is_gpu", "fell_back"),
    [
        (None, "required", "", Line(why_none="MODEL_DOWN"), True, ""),
        ("required", "never", "", Line(waiting=99), True, ""),
        ("never", "required", "", Line(), False, ""),
        (None, "never", "", Line(), False, ""),
        ("preferred", "required", "", Line(waiting=2), True, ""),
        ("preferred", "required", "", Line(waiting=3), False, "GPU_QUEUE_LONG"),
        ("preferred", "required", "", Line(why_none="NO_GPU_NODE"), False, "NO_GPU_NODE"),
        ("auto", "required", "image/png; q=1", Line(), True, ""),
        ("auto", "required", "text/plain", Line(), False, ""),
        (None, "auto", "", Line(), True, ""),
    ],
)
def test_where_a_request_goes(
    asked: str | None, default: str, content_type: str, line: Line, is_gpu: bool, fell_back: str
) -> None:
    mode = None if asked is None else GpuMode(asked)
    choice = choose(mode, GpuMode(default), content_type, line, ROUTING, cpu_model="cpu")
    assert (choice.is_gpu, choice.fell_back) == (is_gpu, fell_back)
    assert choice.mode is not GpuMode.AUTO
    # Only what prefers a GPU, and is on its way to one, falls back later.
    assert (choice.wait_s == 60.0) is (choice.mode is GpuMode.PREFERRED and choice.is_gpu)
    assert choice.wait_s in (None, 60.0)


def test_without_a_cpu_model_nothing_falls_back_and_never_is_refused() -> None:
    for mode in (GpuMode.REQUIRED, GpuMode.PREFERRED):
        choice = choose(mode, GpuMode.REQUIRED, "", Line(waiting=99), ROUTING, cpu_model="")
        assert choice.is_gpu and choice.wait_s is None
    with pytest.raises(BadMode, match="never needs a CPU model"):
        choose(GpuMode.NEVER, GpuMode.REQUIRED, "", Line(), ROUTING, cpu_model="")
    with pytest.raises(BadMode, match="none is given"):
        choose(GpuMode.AUTO, GpuMode.REQUIRED, "", Line(), ROUTING, cpu_model="cpu")
    with pytest.raises(BadMode, match="no mode"):
        mode_of("sometimes")


@pytest.mark.parametrize("content_type", ["image/png", "IMAGE/SVG+XML;a=b", "audio/mpeg", "text/plain", "x/y", "*", ""])
def test_auto_is_of_a_request_what_it_is_of_a_job(content_type: str) -> None:
    jobs = GpuRouting()
    modes = {pattern: GpuMode(mode.value) for pattern, mode in jobs.modes.items()} | {"image/svg+xml": GpuMode.NEVER}
    of_jobs = GpuRouting(modes={pattern: type(jobs.modes["*"])(mode.value) for pattern, mode in modes.items()})
    assert mode_for(content_type, Routing(modes=modes)).value == pattern_for(of_jobs, content_type)[1].value


def test_the_protocols_path_names_the_model_that_answers() -> None:
    assert path_at(b"/v2/models/faces/infer", "faces", "slow") == b"/v2/models/slow/infer"
    assert path_at(b"/v2/models/faces", "faces", "slow") == b"/v2/models/slow"
    for other in (b"/v2/models/faces2/infer", b"/v1/completions", b"/"):
        assert path_at(other, "faces", "slow") == other


async def says_path(call: Call) -> None:
    await call.reply(call.head.target.encode(), headers={"Gpufleet-Model": "a lie"})


async def serve(
    at: Stage,
    *replicas: Replica,
    wait_s: float = 60.0,
    limit: int = 10,
    lacks_gpu_nodes: bool = False,
    failure: str = "",
) -> None:
    """A program with a CPU model."""
    told = sessions_pb2.WatchWorkersResponse(workers=[each.info() for each in replicas])
    told.http.concurrency, told.access = 1, sessions_pb2.MODEL_ACCESS_OPEN
    told.http.cpu_model = "slow"
    told.routing.gpu_wait.FromMilliseconds(round(wait_s * 1e3))
    told.routing.gpu_queue_limit = limit
    told.routing.content_types.update({"image/*": job_pb2.GPU_MODE_PREFERRED, "*": job_pb2.GPU_MODE_NEVER})
    told.lacks_gpu_nodes = lacks_gpu_nodes
    if failure:
        told.failure.message = failure
    at.scheduler.models["faces"] = told
    await at.scheduler.changed()


def told(answer: tuple[int, Mapping[str, str], bytes]) -> tuple[int, str | None, str | None, bytes]:
    status, headers, body = answer
    return status, headers.get("gpufleet-model"), headers.get("gpufleet-fell-back"), body


INFER = "/m/faces/v2/models/faces/infer"


async def ask(at: Stage, mode: str, content_type: str = "") -> tuple[int, str | None, str | None, bytes]:
    headers = {"Gpufleet-Gpu-Mode": mode, "Gpufleet-Content-Type": content_type}
    return told(await asked(at, INFER, "POST", b"x", {name: value for name, value in headers.items() if value}))


async def becomes(at: Stage, answer: tuple[int, str | None, str | None, bytes]) -> None:
    """Wait until the gateway has heard, and answers so who prefers a GPU."""

    async def is_so() -> bool:
        return await ask(at, "preferred") == answer

    await until("it answers so", is_so)


async def test_a_request_says_its_mode_and_the_answer_whose_it_is_and_why() -> None:
    gpu_path, cpu_path = b"/v2/models/faces/infer", b"/v2/models/slow/infer"
    async with stage() as at, program("g", says_path) as gpu, program("c", says_path) as cpu:
        await at.serve("slow", cpu)
        await serve(at, gpu)
        assert await ask(at, "") == (200, "faces", None, gpu_path)
        assert await ask(at, "never") == (200, "slow", None, cpu_path)
        assert await ask(at, "Preferred") == (200, "faces", None, gpu_path)
        assert await ask(at, "auto", "image/png") == (200, "faces", None, gpu_path)
        assert await ask(at, "auto", "text/plain") == (200, "slow", None, cpu_path)
        assert (await ask(at, "sometimes"))[0] == 400
        # No GPU replica is there, or can come.
        await serve(at, lacks_gpu_nodes=True)
        await becomes(at, (200, "slow", "NO_GPU_NODE", cpu_path))
        await serve(at, failure="it ended")
        await becomes(at, (200, "slow", "MODEL_DOWN", cpu_path))
        status, _, _, body = await ask(at, "required")
        assert (status, json.loads(body)["error"]["reason"]) == (503, "MODEL_DOWN"), "never elsewhere in silence"


async def test_a_request_that_prefers_a_gpu_goes_where_it_is_answered_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "GATHER_S", 0.01)
    release = asyncio.Event()

    async def slow(call: Call) -> None:
        await release.wait()
        await call.reply(b"gpu")

    async with stage() as at, program("g", slow) as gpu, program("c", says_path) as cpu:
        await at.serve("slow", cpu)
        await serve(at, gpu, wait_s=0.05, limit=1)
        first = asyncio.create_task(ask(at, "required"))
        await until("it is asked", lambda: gpu.calls)
        assert (await ask(at, "preferred"))[1:3] == ("slow", "GPU_WAIT_OVER")
        waiting = [asyncio.create_task(ask(at, "required")) for _ in range(2)]
        await until("they wait", lambda: at.scheduler.reported("faces") == (1, 2))
        assert (await ask(at, "preferred"))[1:3] == ("slow", "GPU_QUEUE_LONG")
        release.set()
        assert {(await each)[1] for each in [first, *waiting]} == {"faces"}
        told = at.scheduler
        await until("all are told", lambda: (told.count("faces", ""), told.count("slow", "")) == (3, 2))
        assert told.count("faces", "", "fallback_count") == 2, "those that the CPU model has answered"
        assert told.count("slow", "", "fallback_count") == 0


async def test_a_cpu_model_that_is_not_there_or_for_others_is_none() -> None:
    async with stage() as at, program("g", says_path) as gpu:
        await serve(at, gpu)
        assert (await ask(at, "preferred"))[1] == "faces"
        assert (await ask(at, "never"))[0] == 400
    async with stage() as at, program("g", says_path) as gpu, program("c", says_path) as cpu:
        await at.serve("slow", cpu, access=sessions_pb2.MODEL_ACCESS_LOGIN)
        await serve(at, gpu)
        assert (await ask(at, "never"))[0] == 400, "who may use an open program need not be let in there"
        assert not cpu.calls
