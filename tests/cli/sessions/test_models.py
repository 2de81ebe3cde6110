"""`models`: which ones are shown, who may join them, and the worker that is drained."""

from __future__ import annotations

import json

import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, Fault

LOADING, READY, DRAINING = (
    inference_pb2.WORKER_STATE_LOADING,
    inference_pb2.WORKER_STATE_READY,
    inference_pb2.WORKER_STATE_DRAINING,
)


@pytest.fixture(autouse=True)
def served(fake: FakeScheduler) -> None:
    """Two models; of the second, one worker by hand and one that has not called."""
    canvas = sessions_pb2.Model(
        name="canvas", limits=sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_PASS_PHRASE)
    )
    canvas.workers.add(worker_start="4f2a9c01d3", job_id=12, state=READY, seats=4, taken_seats=3)
    canvas.workers.add(worker_start="4f2b000000", job_id=13, state=READY, seats=4)
    canvas.workers.add(worker_start="12ab000000", job_id=14, state=DRAINING, seats=4, taken_seats=1)
    depth = sessions_pb2.Model(name="depth", limits=sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_LOGIN))
    depth.workers.add(worker_start="77ff000000", state=READY, seats=1, taken_seats=1)
    depth.workers.add(job_id=15, state=LOADING)
    mine = sessions_pb2.Model(name="mine", limits=sessions_pb2.SessionLimits(access=sessions_pb2.MODEL_ACCESS_OPEN))
    fake.models = [canvas, depth, mine]


@pytest.mark.parametrize(
    ("word", "asked", "told"),
    [
        ("12", ("canvas", "4f2a9c01d3", 12), "worker 4f2a9c01 of canvas (job 12) drains; 3 turns on it go on"),
        ("4f2a", ("canvas", "4f2a9c01d3", 12), "worker 4f2a9c01 of canvas (job 12) drains; 3 turns on it go on"),
        ("4f2b000000", ("canvas", "4f2b000000", 13), "worker 4f2b0000 of canvas (job 13) drains; nobody is on it"),
        ("12a", ("canvas", "12ab000000", 14), "worker 12ab0000 of canvas (job 14) was draining already"),
        ("77", ("depth", "77ff000000", 0), "worker 77ff0000 of depth drains; 1 turn on it goes on"),
        ("15", ("depth", "", 15), "the worker of depth that is job 15 is stopped: its model is not loaded"),
    ],
)
def test_a_worker_is_drained_by_its_job_or_the_beginning_of_its_id(
    fake: FakeScheduler, gpuctl: Gpuctl, word: str, asked: tuple[str, str, int], told: str
) -> None:
    done = gpuctl("models", "drain", word, "--reason", "new driver")
    assert (done.code, done.text, done.err) == (0, f"{told}\n", "")
    (request,) = fake.asked("DrainWorker")
    assert (request.model, request.worker_start, request.job_id, request.reason) == (*asked, "new driver")


@pytest.mark.parametrize(
    ("words", "code", "says", "step"),
    [
        (["99"], 3, 'there is no worker "99" now', "gpuctl models -o wide"),
        ([""], 3, 'there is no worker "" now', "gpuctl models -o wide"),
        (["12", "--model", "depth"], 3, 'there is no worker "12" now', "gpuctl models -o wide"),
        (["12", "--model", "dept"], 3, 'there is no model "dept"; did you mean "depth"?', "gpuctl models"),
        (
            ["4f2"],
            2,
            '"4f2" is the beginning of 2 workers: worker 4f2a9c01 of canvas (job 12), worker 4f2b0000 of canvas',
            "Write more of its id, or the id of its job: gpuctl models -o wide",
        ),
    ],
)
def test_a_word_that_means_no_worker_or_several_is_refused_and_nothing_is_drained(
    fake: FakeScheduler, gpuctl: Gpuctl, words: list[str], code: int, says: str, step: str
) -> None:
    done = gpuctl("models", "drain", *words)
    told = " ".join(done.err.split())
    assert done.code == code and says in told and step in told, done.err
    assert not fake.asked("DrainWorker")


def test_a_drain_that_is_refused_says_why_and_one_whose_answer_is_lost_is_sent_again(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.faults["DrainWorker"].append(Fault.LOST_ANSWER)
    assert gpuctl("models", "drain", "12", "-o", "name").text == "12\n"
    assert len(fake.asked("DrainWorker")) == 2
    fake.faults["DrainWorker"].append(GpufleetError(Reason.PERMISSION_DENIED, "model canvas is grace's"))
    refused = gpuctl("models", "drain", "12")
    assert refused.code == 4 and "model canvas is grace's" in refused.err
    assert gpuctl("models", "drain", "12", "-o", "json").text == "{}\n"


def test_who_may_join_stands_in_the_table_where_there_is_room_and_always_in_the_wide_one_and_in_json(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    def column(*arguments: str) -> list[str]:
        title, *rows = gpuctl("models", *arguments).text.split("\n\n")[0].splitlines()
        start, end = title.find("ACCESS"), title.find("STATE")
        return [row[start:end].strip() for row in rows] if start >= 0 else []

    assert column() == ["pass phrase", "login", "everybody"]
    shown = json.loads(gpuctl("models", "-o", "json").text)["models"]
    assert [each["limits"]["access"].removeprefix("MODEL_ACCESS_") for each in shown] == [
        "PASS_PHRASE",
        "LOGIN",
        "OPEN",
    ]
    fake.models[2].failure.message = "the model needs torch, which is not installed in /home/ada/venv"
    assert column() == [], "the state needs the room"
    assert column("-o", "wide") == ["pass phrase", "login", "everybody"]


def test_the_wide_table_says_which_share_of_requests_fell_back_and_warns_of_more_than_a_twentieth(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    assert "FELL BACK" not in gpuctl("models", "-o", "wide").text and not fake.asked("ListRequestUsage")
    name = fake.models[0].name
    fake.models[0].http.cpu_model = "on-cpus"
    rows = [{"user": "ann", "request_count": 40, "fallback_count": 10}, {"user": "bob", "request_count": 50}]
    counted = [sessions_pb2.CountedRequests(model=name, **each) for each in rows]  # type: ignore[arg-type]
    fake.request_usage = sessions_pb2.ListRequestUsageResponse(rows=counted)
    shown = " ".join(gpuctl("models", "-o", "wide").text.split())
    assert "FELL BACK" in shown and f"requests of the last hour to {name} 10% fell back to on-cpus" in shown
    assert f"gpuctl serve {name} --update --max N" in shown
    counted[1].request_count = 950
    fake.request_usage = sessions_pb2.ListRequestUsageResponse(rows=counted)
    shown = gpuctl("models", "-o", "wide").text
    assert " 1% " in shown and "of the last hour" not in shown
    assert "FELL BACK" not in gpuctl("models").text


def test_one_model_is_shown_by_its_name(gpuctl: Gpuctl) -> None:
    assert gpuctl("models", "--model", "depth", "-o", "name").text == "depth\n"
    missing = gpuctl("models", "--model", "dept")
    assert missing.code == 3 and 'did you mean "depth"?' in missing.err
