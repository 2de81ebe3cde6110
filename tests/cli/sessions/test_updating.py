"""A model that is served again: what is asked for, what its update is told as, and how it ends."""

from __future__ import annotations

from dataclasses import fields

import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

from cli.sessions.serve_options import PredictOptions, ProgramOptions, TurnOptions, WorkerOptions
from cli.sessions.updating import PATHS, paths_of
from scheduler.wire.updated_models import PATHS as KNOWN_PATHS
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler

READY = inference_pb2.WORKER_STATE_READY


@pytest.fixture
def chat(fake: FakeScheduler) -> sessions_pb2.Model:
    """A program of which the second revision is served."""
    model = sessions_pb2.Model(name="chat", min_workers=1, revision=2, former_revision=1)
    model.http.argv.append("serve")
    model.workers.add(worker_start="4f2a9c01d3", job_id=12, state=READY, seats=64, revision=2)
    fake.models = [model]
    return model


def test_what_was_served_before_is_served_again(fake: FakeScheduler, gpuctl: Gpuctl, chat: sessions_pb2.Model) -> None:
    done = gpuctl("serve", "chat", "--rollback")
    assert (done.code, done.text) == (0, "model chat is ready: 1 replica, at the gateway under /m/chat/\n")
    (request,) = fake.asked("ServeModel")
    assert request == sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="chat"), rollback=True)


def test_an_update_that_waits_for_room_may_go_on_in_place(
    fake: FakeScheduler, gpuctl: Gpuctl, chat: sessions_pb2.Model
) -> None:
    assert gpuctl("serve", "chat", "--update", "--in-place").code == 0
    (request,) = fake.asked("ServeModel")
    assert request.in_place and not request.model.HasField("http")


def test_an_update_that_fails_says_why_and_what_stays(gpuctl: Gpuctl, chat: sessions_pb2.Model) -> None:
    chat.update.failure.message = "there is no program no-such in PATH"
    chat.update.failure.job_id = 16
    chat.update.failure.last_lines.append("no-such: not found")
    done = gpuctl("serve", "chat", "--", "no-such")
    told = " ".join(done.err.split())
    assert done.code == 1
    assert "no-such: not found" in told
    assert "the update of model chat to revision 2 has failed, and revision 1 stays: there is no program" in told
    assert "gpuctl serve chat --rollback" in told


def test_nobody_waits_for_an_update_that_the_next_request_starts(
    fake: FakeScheduler, gpuctl: Gpuctl, chat: sessions_pb2.Model
) -> None:
    chat.min_workers = 0
    chat.update.SetInParent()
    chat.workers[0].state = inference_pb2.WORKER_STATE_DRAINING
    fake.before["ListModels"] = lambda _: chat.workers.clear()  # it has drained, as nobody asks
    done = gpuctl("serve", "chat", "--", "serve", "--better")
    assert (done.code, done.text) == (
        0,
        "model chat: no worker: nobody waits, updating to revision 2 with the next worker\n",
    )


@pytest.mark.parametrize(
    "beside", [["--update"], ["--gpus", "1"], ["--idle", "1m"], ["--ready", "/health"], ["--", "serve"]]
)
def test_nothing_else_is_said_with_a_rollback(
    fake: FakeScheduler, gpuctl: Gpuctl, chat: sessions_pb2.Model, beside: list[str]
) -> None:
    done = gpuctl("serve", "chat", "--rollback", *beside)
    assert done.code == 2 and "--rollback" in done.err
    assert not fake.asked("ServeModel")


def test_an_update_names_what_was_typed_and_nothing_else(
    fake: FakeScheduler, gpuctl: Gpuctl, chat: sessions_pb2.Model
) -> None:
    typed = ("--gpu-share", "0.5", "--min", "0", "--env", "A=1", "--idle", "5m", "--", "serve", "--better")
    done = gpuctl("serve", "chat", "--update", *typed)
    assert done.code == 0, done.err
    (request,) = fake.asked("ServeModel")
    said = ["http.argv", "http.idle", "min_workers", "worker.devices", "worker.env"]
    assert list(request.update_mask.paths) == said
    (devices,) = request.model.worker.devices
    assert (devices.count, devices.share.milli, request.model.worker.env["A"]) == (0, 500, "1")
    assert list(request.model.http.argv) == ["serve", "--better"]


def test_the_idle_time_alone_is_that_of_the_program(
    fake: FakeScheduler, gpuctl: Gpuctl, chat: sessions_pb2.Model
) -> None:
    assert gpuctl("serve", "chat", "--update", "--idle", "5m").code == 0
    (request,) = fake.asked("ServeModel")
    assert (list(request.update_mask.paths), request.model.http.idle.seconds) == (["http.idle"], 300)


@pytest.mark.parametrize("typed", [("--min", "0"), ("--", "serve", "--better"), ("--idle", "5m")])
def test_a_name_that_is_spelled_wrong_is_not_served(
    fake: FakeScheduler, gpuctl: Gpuctl, chat: sessions_pb2.Model, typed: tuple[str, ...]
) -> None:
    done = gpuctl("serve", "caht", "--update", *typed)
    assert done.code != 0 and "no model is called 'caht'" in done.err
    assert not fake.asked("ServeModel")


def test_every_option_of_a_program_can_be_changed_alone() -> None:
    options = {each.name for of in (WorkerOptions, ProgramOptions) for each in fields(of)} | {"idle", "access"}
    assert options - {"model_arg"} == PATHS.keys()
    assert {*PATHS.values(), "http.argv", "worker.submit_cwd"} == KNOWN_PATHS


def test_what_is_not_changed_alone_is_refused(gpuctl: Gpuctl, chat: sessions_pb2.Model) -> None:
    for typed in (("--model-arg", "a=1"), ("--predict",), ("--min", "0", "--turn", "60s")):
        done = gpuctl("serve", "chat", "--update", *typed)
        assert done.code == 2, done.err
    assert paths_of((), WorkerOptions(), ProgramOptions(), TurnOptions(), PredictOptions()) == []
