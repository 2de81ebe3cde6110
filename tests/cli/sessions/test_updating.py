"""A model that is served again: what is asked for, what its update is told as, and how it ends."""

from __future__ import annotations

import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

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
