"""`[privacy] output`: each call of the contract × who calls × whose job it is × the setting, from one table.

What a call tells of a job is written here by hand, and a call without a row fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from scheduler.api.sight import HIDDEN
from tests.api.calls import METHODS
from tests.api.test_sight import ASKED_OF_A_JOB, CARRY, Call, said
from tests.e2e.client import Client, refusal
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_results import stored
from tests.e2e.jobs.test_running_files import asked
from tests.e2e.processes import DEADLINE_SECONDS, until

pb = scheduler_pb2
ARGUMENT = "--of-ann-alone"
FILE = file("file-of-ann.csv", b"data of ann")
REFUSAL = "only its owner and admins read what it does"
ROOT = Path(__file__).parents[2]

TELLS = {
    "what a job does": "StreamOutput GetStory GetJobStats ListFiles DownloadFile AccessFiles",
    "that there is a job, and its spec": "Submit Ingest Queue GetJob Explain Watch ServeModel ListModels ListSessions",
    "that there is a job": "ListAuditEntries ListArrayItems ListEndedJobs ListWorkers ListDevices WatchDevices",
    "nothing that its owner or an admin did not ask for": "Cancel UpdateJob SignalJob RequeueJob AttachJob StopModel "
    "ForwardPort ExecJob KeepFiles CloseSession DrainWorker OpenSession",
    "nothing of a job": "ListNodes UpdateNode ForgetNode ApproveNode RevokeNode CheckCapacity Estimate GetNodeHistory "
    "GetQueueHistory ListUsage GetServerInfo UpdateServer ListSessionUsage WatchWorkers ReportRequests CountRequests "
    "ListRequestUsage FindMissingBlobs UploadBlob CheckFiles DownloadBlob CreateToken JoinProgram ListTokens "
    "RevokeToken DescribeLogin BeginLogin Login Logout SetSecret ListSecrets RemoveSecret ListGroups SetGroup "
    "RenameGroup RemoveGroup",
    "what is for the fleet's own programs": "ConnectWorker Register Heartbeat ReportOutput OpenChannel CarryPort "
    "CarryExec CarryFiles FetchBlob StoreResults",
}
KIND = {name: kind for kind, names in TELLS.items() for name in names.split()}


def test_every_call_says_once_what_it_tells_of_a_job() -> None:
    assert sorted(KIND) == sorted(name.partition("/")[2] for name in METHODS)
    assert sum(len(names.split()) for names in TELLS.values()) == len(KIND)


READS: dict[str, Call] = {
    name: call for name, call in (CARRY | ASKED_OF_A_JOB).items() if KIND[name] == "what a job does"
}
SPECS: dict[str, Call] = {name: CARRY[name] for name in ("Queue", "GetJob", "Explain", "Watch")}


@pytest.fixture(scope="module")
def private(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fleet, Path]]:
    """A fleet of its own, whose settings file is to be changed."""
    folder = tmp_path_factory.mktemp("private")
    settings = folder / "scheduler.toml"
    settings.write_text('[privacy]\noutput = "owner"\n')
    fleet = Fleet(folder, "--config", str(settings))

    async def start() -> None:
        await fleet.scheduler.start()
        await fleet.add_node("n1")

    try:
        with long_lived("the private fleet"):
            asyncio.run(start())
        yield fleet, settings
    finally:
        asyncio.run(fleet.end())


@pytest.fixture
async def people(private: tuple[Fleet, Path]) -> AsyncIterator[dict[str, Client]]:
    """Ann, whose job it is, another user, viewers, and the admin."""
    fleet, _ = private
    async with fleet.client() as admin:

        async def token(user: str, role: Any) -> str:
            request = pb.CreateTokenRequest(user=user, role=role)
            return str((await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret)

        user, viewer = pb.ROLE_USER, pb.ROLE_VIEWER
        async with (
            fleet.client(await token("ann", user)) as ann,
            fleet.client(await token("bob", user)) as bob,
            fleet.client(await token("eve", viewer)) as eve,
            fleet.client(await token("ann", viewer)) as anns_screen,
        ):
            yield {"ann": ann, "bob": bob, "eve": eve, "ann's screen": anns_screen, "admin": admin}


async def test_what_a_job_does_is_read_by_whom_the_setting_says_and_a_sighup_changes_it(
    private: tuple[Fleet, Path], people: dict[str, Client]
) -> None:
    fleet, settings = private
    # It asks of itself with its own token, which no setting keeps from it.
    story = f"{shlex.quote(sys.executable)} -P -m gpufleet.cli story $GPUFLEET_JOB_ID"
    line = f"cd {shlex.quote(str(ROOT))}; echo printed; : {ARGUMENT}; {story} | head -1"
    await upload(people["ann"], b"data of ann")
    job = (
        await people["ann"].run(
            "/bin/sh", "-c", line, output_file="out-of-ann.log", files=[FILE], results=["left-by-ann"]
        )
    ).id
    assert b"printed\n" in (out := await people["ann"].stdout(job))
    assert len(out.splitlines()) == 2, out
    await _holds(people, job, readers={"ann", "admin"})
    error = await refusal(people["bob"].stub.GetStory(pb.GetStoryRequest(job_id=job)))
    assert error.reason is Reason.OUTPUT_PRIVATE
    assert "ann" in error.message
    assert "ask ann" in error.next_step
    settings.write_text('[privacy]\noutput = "team"\n')
    fleet.scheduler.signal(signal.SIGHUP)

    async def is_shared() -> bool:
        return (await people["bob"].job(job)).spec.argv[-1] != HIDDEN

    await until("the setting is applied", is_shared)
    await _holds(people, job, readers=set(people))


async def test_files_that_download_chooses_are_for_whom_the_setting_says_while_the_job_runs_and_afterwards(
    private: tuple[Fleet, Path], people: dict[str, Client]
) -> None:
    """Everything else of the folder, and every write, stays with its owner and admins (rule 4.59)."""
    fleet, settings = private
    line = "mkdir out; echo chosen >out/a; echo not >secret; ln -s ../secret out/link; ln -s . out/up; touch out/ready"
    job = await people["ann"].submit("/bin/sh", "-c", f"{line}; sleep 600", cwd="", results=["out/**", "!ready"])
    await upload(people["ann"], b"data of ann")
    bare = await people["ann"].submit("/bin/sh", "-c", "touch a; sleep 600", cwd="", files=[FILE])
    await people["ann"].wait(bare, job_pb2.JOB_STATE_RUNNING)

    async def is_ready() -> bool:
        try:
            return any(each.path == "out/ready" for each in await _listed(people["ann"], job))
        except GpufleetError as problem:
            assert problem.reason is Reason.JOB_NOT_RUNNING, problem
            return False

    await until("the job has made its files", is_ready)
    for setting, readers in (("owner", {"ann", "admin"}), ("team", set(people))):
        settings.write_text(f'[privacy]\noutput = "{setting}"\n')
        fleet.scheduler.signal(signal.SIGHUP)

        async def is_applied(readers: set[str] = readers) -> bool:
            return ((await people["bob"].job(job)).spec.argv[-1] != HIDDEN) == ("bob" in readers)

        await until("the setting is applied", is_applied)
        for who, client in people.items():
            if who not in readers:
                assert await _why(client, job, list=files_pb2.ListFolder()) is Reason.OUTPUT_PRIVATE, who
                continue
            is_owner = who in ("ann", "admin")
            paths = {each.path for each in await _listed(client, job)}
            assert paths == ({"out/a", "out/link", "out/ready", "out/up", "secret"} if is_owner else {"out/a"}), who
            assert await _why(client, job, read=files_pb2.ReadFile(path="out/a")) is None
            for path in ("secret", "out/ready", "absent", "out/link", "out/up/secret"):
                why = await _why(client, job, read=files_pb2.ReadFile(path=path))
                assert why is Reason.FILE_NOT_FOUND or is_owner, (who, path)
            write = files_pb2.WriteFile(path="out/a", size_bytes=1, digest=hashlib.sha256(b"x").hexdigest())
            if not is_owner:
                assert await _why(client, job, b"x", write=write) is Reason.NOT_YOUR_JOB, who
                assert await _why(client, job, keep=files_pb2.KeepFolder()) is Reason.NOT_YOUR_JOB, who
                assert await _why(client, bare, list=files_pb2.ListFolder()) is Reason.NOT_YOUR_JOB, who
        assert (await asked(people["ann"], job, read=files_pb2.ReadFile(path="out/a"))).digest == hashlib.sha256(
            b"chosen\n"
        ).hexdigest()
    for each in (job, bare):
        await people["ann"].cancel(each)
        await people["ann"].wait(each)
    await stored(people["ann"], job)
    assert [each.path for each in (await stored(people["bob"], job)).files] == ["out/a"]


async def test_what_a_job_is_given_of_anothers_is_as_the_setting_says_at_submit_and_when_it_is_laid_out(
    private: tuple[Fleet, Path], people: dict[str, Client]
) -> None:
    fleet, settings = private
    ann, bob, admin = people["ann"], people["bob"], people["admin"]
    job = (await ann.run("/bin/sh", "-c", "echo chosen >a", cwd="", results=["a"])).id
    await stored(ann, job)
    inputs = [job_pb2.JobInput(job_id=job, pattern="a")]

    async def set_to(setting: str) -> None:
        settings.write_text(f'[privacy]\noutput = "{setting}"\n')
        fleet.scheduler.signal(signal.SIGHUP)

        async def is_applied() -> bool:
            return ((await bob.job(job)).spec.argv[-1] != HIDDEN) == (setting == "team")

        await until("the setting is applied", is_applied)

    await set_to("team")
    held = await bob.submit("cat", "a", cwd="", inputs=inputs, is_held=True)
    await set_to("owner")
    error = await refusal(bob.stub.Submit(pb.SubmitRequest(specs=[bob.spec("cat", "a", cwd="", inputs=inputs)])))
    assert error.reason is Reason.OUTPUT_PRIVATE
    update = pb.UpdateJobRequest(jobs=pb.JobSelector(job_ids=[held]), is_held=False)
    update.update_mask.paths.append("is_held")
    await bob.stub.UpdateJob(update)
    ended = await bob.wait(held)
    assert (ended.exit_reason, "may not read what it left" in ended.exit_message) == ("INPUT_UNUSABLE", True), ended
    for who in (ann, admin):
        given = await who.run("cat", "a", cwd="", inputs=inputs)
        assert await who.stdout(given.id) == b"chosen\n"


async def _listed(client: Client, job: int) -> list[files_pb2.FolderEntry]:
    return list((await asked(client, job, list=files_pb2.ListFolder())).entries)


async def _why(client: Client, job: int, data: bytes = b"", **question: Any) -> Reason | None:
    """Why a question about a job's folder is not answered; None where it is."""
    try:
        await asked(client, job, data, **question)
    except GpufleetError as problem:
        return problem.reason
    return None


async def _holds(people: dict[str, Client], job: int, readers: set[str]) -> None:
    for who, client in people.items():
        for name, call in READS.items():
            answer = await said(call(client, job))
            assert (REFUSAL in answer) == (who not in readers), f"{name} by {who}: {answer}"
        for name, call in SPECS.items():
            answer = await said(call(client, job))
            assert (ARGUMENT in answer) == (who in readers), f"{name} by {who}: {answer}"
            assert ("out-of-ann" in answer) == (who in readers), f"{name} by {who}: {answer}"
            assert ("file-of-ann" in answer) == (who in readers), f"{name} by {who}: {answer}"
            assert (FILE.digest in answer) == (who in readers), f"{name} by {who}: {answer}"
            assert ("left-by-ann" in answer) == (who in readers), f"{name} by {who}: {answer}"


async def test_a_models_arguments_and_program_are_hidden_with_what_its_worker_does(
    private: tuple[Fleet, Path], people: dict[str, Client]
) -> None:
    fleet, settings = private
    settings.write_text('[privacy]\noutput = "owner"\n')
    fleet.scheduler.signal(signal.SIGHUP)
    worker = job_pb2.JobSpec(cwd="/")
    model = sessions_pb2.Model(name="m", entry_point="a:B", worker=worker, max_workers=1, arguments={"key": ARGUMENT})
    await people["ann"].stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))

    async def is_hidden() -> bool:
        return ARGUMENT not in await said(CARRY["ListModels"](people["bob"], 0))

    await until("the setting is applied", is_hidden)
    assert HIDDEN in await said(CARRY["ListModels"](people["eve"], 0))
    assert ARGUMENT in await said(CARRY["ListModels"](people["ann"], 0))
    assert ARGUMENT in await said(CARRY["ListModels"](people["admin"], 0))
