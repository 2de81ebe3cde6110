"""What others see of a job: every call whose answer can carry a spec, by the descriptors, as another person."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from gpufleet.v1 import capacity_pb2, files_pb2, job_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import Reason
from scheduler.api.jobs.shown import _hide_setup
from scheduler.api.sight import HIDDEN, PRIVATE, SECRET, Sight
from scheduler.state.ids import UserName
from tests.api.calls import METHODS
from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

HIDDEN_VALUE = "hf_only-anns"
HOOK = "https://chat.example/hooks/only-anns"
MODEL = "anns-model"

pb, models = scheduler_pb2, sessions_pb2
Call = Callable[[Client, int], Any]


def _of_model() -> sessions_pb2.Model:
    return models.Model(
        name=MODEL,
        entry_point="a:B",
        worker=job_pb2.JobSpec(env={"TOKEN": HIDDEN_VALUE}, notify=HOOK, cwd="/"),
        max_workers=1,
    )


async def _attached(job: int) -> AsyncIterator[scheduler_pb2.AttachJobRequest]:
    yield pb.AttachJobRequest(job_id=job)


CARRY: dict[str, Call] = {
    "Submit": lambda who, job: who.stub.Submit(pb.SubmitRequest(rerun_failed_job_id=job, dry_run=True)),
    "StreamOutput": lambda who, job: who.stub.StreamOutput(pb.StreamOutputRequest(job_id=job)),
    "Queue": lambda who, job: who.stub.Queue(pb.QueueRequest(include_finished=True, page_size=1000)),
    "GetJob": lambda who, job: who.stub.GetJob(pb.GetJobRequest(job_id=job)),
    "Explain": lambda who, job: who.stub.Explain(pb.ExplainRequest(job_id=job)),
    "Watch": lambda who, job: who.stub.Watch(pb.WatchRequest(job_ids=[job])),
    "AttachJob": lambda who, job: who.stub.AttachJob(_attached(job)),
    "ServeModel": lambda who, job: who.stub.ServeModel(models.ServeModelRequest(model=_of_model())),
    "ListModels": lambda who, job: who.stub.ListModels(models.ListModelsRequest()),
}
"""Each call whose answer can carry a spec, made so that it carries that of ann's job, or model, where it may."""

ASKED_OF_A_JOB: dict[str, Call] = {
    "GetStory": lambda who, job: who.stub.GetStory(pb.GetStoryRequest(job_id=job)),
    "GetJobStats": lambda who, job: who.stub.GetJobStats(capacity_pb2.GetJobStatsRequest(job_id=job)),
    "ListFiles": lambda who, job: who.stub.ListFiles(files_pb2.ListFilesRequest(job_id=job)),
    "DownloadFile": lambda who, job: who.stub.DownloadFile(files_pb2.DownloadFileRequest(job_id=job, path="left")),
    "Cancel": lambda who, job: who.stub.Cancel(pb.CancelRequest(jobs=select(job))),
    "RequeueJob": lambda who, job: who.stub.RequeueJob(pb.RequeueJobRequest(jobs=select(job))),
}
"""Calls whose answers have text of their own about a job."""


def carries_spec(message: Any, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a message of this kind can carry a spec, however deep."""
    if message.full_name == job_pb2.JobSpec.DESCRIPTOR.full_name:
        return True
    inner = [field.message_type for field in message.fields if field.message_type is not None]
    return any(carries_spec(each, seen | {message.full_name}) for each in inner if each.full_name not in seen)


def test_every_call_whose_answer_can_carry_a_spec_is_tried_here() -> None:
    found = {name for name, method in METHODS.items() if carries_spec(method.output_type)}
    # What Ingest answers can carry is the job that it has just made for who asks.
    assert {f"Scheduler/{name}" for name in CARRY} == found - {"Scheduler/Ingest"}


async def said(call: Any) -> str:
    """All that comes: the answer, the first messages of a stream, or the refusal."""
    try:
        if not hasattr(call, "read"):
            return str(await call)
        read = [str(message) for _ in range(2) if (message := await call.read())]
        return "".join(read)
    except Exception as problem:
        return str(problem)
    finally:
        call.cancel()


@pytest.fixture
async def people(fleet: Fleet, admin: Client) -> AsyncIterator[dict[str, Client]]:
    """Ann, whose things they are, bob, a viewer, one whose token has ann's name, and the admin."""

    async def token(user: str, role: Any) -> str:
        request = pb.CreateTokenRequest(user=user, role=role)
        return str((await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret)

    user, viewer = pb.ROLE_USER, pb.ROLE_VIEWER
    async with (
        fleet.client(await token("ann-sight", user)) as ann,
        fleet.client(await token("bob-sight", user)) as bob,
        fleet.client(await token("eve", viewer)) as eve,
        fleet.client(await token("ann-sight", viewer)) as anns_screen,
    ):
        yield {"ann": ann, "bob": bob, "eve": eve, "ann's screen": anns_screen, "admin": admin}


async def test_nobody_but_its_owner_and_admins_sees_values_of_variables_in_any_answer(
    people: dict[str, Client],
) -> None:
    ann = people["ann"]
    fields: dict[str, Any] = {"env": {"TOKEN": HIDDEN_VALUE}, "notify": HOOK, "is_held": True}
    held = await ann.submit("true", **fields, input=job_pb2.INPUT_MODE_PIPE)
    failed = await ann.run("false", env={"TOKEN": HIDDEN_VALUE})
    array = (await ann.submit_specs([ann.spec("true", **fields, array=job_pb2.ArraySpec(indices="1-3"))])).first_job_id
    served = await ann.stub.ServeModel(models.ServeModelRequest(model=_of_model()))
    assert served.model.name == MODEL
    try:
        for job in (held, failed.id, array, array + 1):
            for name, call in (CARRY | ASKED_OF_A_JOB).items():
                for who in ("bob", "eve", "ann's screen"):
                    answer = await said(call(people[who], job))
                    assert HIDDEN_VALUE not in answer, f"{name} tells {who} a value of job {job}"
                    assert HOOK not in answer, f"{name} tells {who} whom job {job} notifies"
        for who in ("ann", "admin"):
            for name in ("GetJob", "Queue", "Explain"):
                assert HIDDEN_VALUE in await said(CARRY[name](people[who], held)), f"{name} hides {who} a value"
        assert HOOK in await said(CARRY["ListModels"](ann, held))
        spec = (await people["bob"].job(held)).spec
        assert spec.env["TOKEN"] == HIDDEN
        assert list(spec.hidden_fields) == ["env", "notify"]
        error = await refusal(people["bob"].stub.Submit(pb.SubmitRequest(specs=[spec])))
        assert error.reason is Reason.INVALID_ARGUMENT
        assert "specs[0].hidden_fields" in str(error)
        assert not (await ann.job(held)).spec.hidden_fields
    finally:
        await ann.stub.StopModel(models.StopModelRequest(name=MODEL))
        await ann.cancel(held, array)


FOR_EVERYBODY = {
    *("after", "array", "band", "begin_time", "blame_limit", "content_type", "cpus", "cwd", "devices", "exclude"),
    *("gpu_mode", "grace", "group", "input", "is_held", "is_preemptible", "kind", "labels", "limit_signal"),
    *("memory_bytes", "name", "no_gpu_selection", "no_requeue", "no_span", "no_warnings", "node_count", "node_labels"),
    *("nodelist", "pins", "process", "queue_timeout", "requeue_fence", "requeue_on_timeout", "retries"),
    *("sampling_interval", "serves", "submit_cwd", "time_limit", "trace_context"),
}
"""What a job asks for and holds, by which others know what is before them in the queue."""


def test_each_field_of_a_spec_is_for_everybody_or_is_hidden_by_name() -> None:
    names = {field.name for field in job_pb2.JobSpec.DESCRIPTOR.fields} - {"hidden_fields"}
    assert names == {*FOR_EVERYBODY, *SECRET, *PRIVATE}, "say of a new field who sees it"
    assert len(names) == len(FOR_EVERYBODY) + len(SECRET) + len(PRIVATE)


@pytest.mark.parametrize(("is_shared", "hidden"), [(True, SECRET), (False, (*SECRET, *PRIVATE))])
def test_nothing_is_left_of_what_is_hidden_and_its_name_is_told(is_shared: bool, hidden: tuple[str, ...]) -> None:
    spec = job_pb2.JobSpec(
        argv=[HIDDEN_VALUE], cpu_argv=[HIDDEN_VALUE], env={"TOKEN": HIDDEN_VALUE}, notify=HIDDEN_VALUE
    )
    spec.output_file = HIDDEN_VALUE
    spec.files.add(path=HIDDEN_VALUE)
    spec.folder.digest = HIDDEN_VALUE
    spec.results.append(HIDDEN_VALUE)
    spec.keep.append(HIDDEN_VALUE)
    spec.inputs.add(pattern=HIDDEN_VALUE)
    spec.environment.setup = HIDDEN_VALUE
    spec.container.image = HIDDEN_VALUE
    spec.secrets["TOKEN"] = HIDDEN_VALUE
    empty = set(hidden) - {field.name for field, _ in spec.ListFields()}
    assert not empty, "fill them in above"
    Sight(owner=None, is_admin=False, is_shared=is_shared).hide(spec, UserName("ann"))
    assert sorted(spec.hidden_fields) == sorted(hidden)
    shown = {field.name for field, value in spec.ListFields() if HIDDEN_VALUE in str(value)}
    assert shown == {*SECRET, *PRIVATE} - set(hidden)


def test_what_a_setup_wrote_is_for_who_reads_output() -> None:
    job = job_pb2.Job(exit_reason="SETUP_FAILED", exit_message=HIDDEN_VALUE)
    job.attempts.add(exit_reason="SETUP_FAILED", exit_message=HIDDEN_VALUE).ranks.add(
        exit_reason="SETUP_FAILED", exit_message=HIDDEN_VALUE
    )
    _hide_setup(job)
    assert HIDDEN_VALUE not in str(job)
    assert job.exit_message == "its environment could not be made"
