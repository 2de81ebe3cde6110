"""Who is told what of a job: every call × every role × whose job it is × `[privacy] output`, at one real server.

Nothing here says what a call tells: who may call is the table of roles, which fields are whose is sight.py, and which
answers can carry a job's spec is in the descriptors. Each field of ann's job has a text of its own to be looked for.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass
from gpufleet.v1 import capacity_pb2, files_pb2, job_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import Reason
from gpufleet.net.status import from_rpc_error
from scheduler.api.fleet.history import OTHER_GROUPS
from scheduler.api.own_job import JOB_NAMED_BY
from scheduler.api.roles import ROLES_OF
from scheduler.api.sight import PRIVATE, PRIVATE_CAPS, SECRET
from scheduler.state.access import Role
from tests.api.calls import METHODS, one
from tests.api.jobs.test_folders import RIGHT, folder
from tests.api.test_privacy import KIND, private
from tests.api.test_sight import carries_spec
from tests.e2e.client import Client, dial, select
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gpufleet_lib.hostile_manifests import BYTES

pb = scheduler_pb2
__all__ = ["private"]

FILE = file("mark-files.csv", b"data of the matrix")
UNMARKED = {"container"}
"""It does not go with an environment; test_sight.py has both."""
MARKS = {name: f"mark-{name}" for name in {*SECRET, *PRIVATE} - UNMARKED} | {
    "folder": folder(RIGHT).digest,
    "env": "mark-variable",  # no beginning of another mark
}
"""What stands in each field of ann's job that others may not see."""
MODEL = "of-the-matrix"
FIRST_MESSAGE_SECONDS = 1.0
"""A stream that says nothing for so long tells nothing."""
CHANGES = "nothing that its owner or an admin did not ask for"
NEVER_ASKED = {"Scheduler/Submit", "Scheduler/ServeModel"}
"""They answer what is sent with them; what they answer of another's job and model is in test_sight.py."""


CARRY_SPECS = {call for call, method in METHODS.items() if carries_spec(method.output_type)} - NEVER_ASKED


@dataclass(frozen=True)
class Asks:
    """Somebody with a token: who, as what, and, of a job, of which."""

    name: str
    role: Role
    token: str
    is_ann: bool = False
    job: int = 0

    def sees_all(self, job: int) -> bool:
        return self.role is Role.ADMIN or (self.role is Role.USER and self.is_ann) or (self.job == job != 0)

    def may_ask(self, call: str, job: int) -> bool:
        if self.role is Role.JOB and call in JOB_NAMED_BY:
            return self.job == job
        return self.role in ROLES_OF[call]


def marks_of(who: Asks, job: int, is_shared: bool) -> set[str]:
    """The fields that somebody sees of ann's job."""
    seen = {*SECRET, *PRIVATE} if who.sees_all(job) else set(PRIVATE) if is_shared else set()
    return seen - UNMARKED


def about(call: str, job: int) -> Any:
    """A request about a job, wherever the contract has room for its number; else an empty one."""
    request: Any = GetMessageClass(METHODS[call].input_type)()
    for field in request.DESCRIPTOR.fields:
        if field.message_type is pb.JobSelector.DESCRIPTOR:
            getattr(request, field.name).CopyFrom(select(job))
        elif field.name == "job_id":
            request.job_id = job
        elif field.name == "job_ids":
            request.job_ids.append(job)
        elif field.message_type is files_pb2.AccessedFiles.DESCRIPTOR:
            getattr(request, field.name).job_id = job
        elif field.name == "include_finished":
            request.include_finished = True
        elif field.name == "page_size":
            request.page_size = 1_000
    return request


async def told(channel: Any, call: str, job: int, token: str) -> tuple[Reason | None, str]:
    """Why a call is refused, if it is, and all that it answers at first."""
    method = METHODS[call]
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    make = getattr(channel, kind)(
        f"/gpufleet.v1.{call}",
        request_serializer=lambda each: each.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    request = about(call, job)
    made = make(one(request) if method.client_streaming else request, metadata=(("authorization", f"Bearer {token}"),))
    answers: list[str] = []
    try:
        async with asyncio.timeout(DEADLINE_SECONDS if not method.server_streaming else FIRST_MESSAGE_SECONDS):
            if not method.server_streaming:
                return None, str(await made)
            while (message := await made.read()) is not grpc.aio.EOF:
                answers.append(str(message))
    except TimeoutError:
        pass
    except grpc.aio.AioRpcError as problem:
        return from_rpc_error(problem).reason, f"{problem.details()} {answers}"
    finally:
        made.cancel()
    return None, "".join(answers)


@asynccontextmanager
async def everybody(fleet: Fleet) -> AsyncIterator[tuple[list[Asks], int]]:
    """One of each role, ann and bob, and tokens of running jobs of both; and ann's job that has ended."""
    async with fleet.client() as admin:

        async def token(user: str, role: Role) -> str:
            number = pb.Role.Value(f"ROLE_{role.name}")
            request = pb.CreateTokenRequest(user=user, role=number)
            return str((await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret)

        found = [Asks("the admin", Role.ADMIN, fleet.scheduler.token("admin"))]
        for role in (Role.VIEWER, Role.NODE, Role.AGENT, Role.GATEWAY, Role.WORKER):
            found.append(Asks(f"a {role.value}", role, await token("somebody", role)))
            found.append(Asks(f"a {role.value} of ann's name", role, await token("ann", role), is_ann=True))
        running: list[int] = []
        ended = 0
        for user in ("ann", "bob"):
            own = await token(user, Role.USER)
            found.append(Asks(user, Role.USER, own, is_ann=user == "ann"))
            async with fleet.client(own) as person:
                if user == "ann":
                    ended = await anns_job(person)
                    model = sessions_pb2.Model(name=MODEL, entry_point="a:B", worker=marked(person), max_workers=1)
                    model.worker.ClearField("files")
                    await person.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))
                said = fleet.work / f"token-of-{user}s-job-{ended}"
                line = f"printenv GPUFLEET_JOB_TOKEN > {said}.new && mv {said}.new {said}; exec sleep 100000"
                job = await person.submit("sh", "-c", line)
                await until("the job has told its token", said.exists)
                running.append(job)
                found.append(Asks(f"a job of {user}'s", Role.JOB, read(said), is_ann=user == "ann", job=job))
        try:
            yield found, ended
        finally:
            await admin.cancel(*running)
            await admin.stub.StopModel(sessions_pb2.StopModelRequest(name=MODEL))


def read(file: Path) -> str:
    return file.read_text().strip()


def marked(person: Client) -> job_pb2.JobSpec:
    """A spec with each mark in its field."""
    spec: job_pb2.JobSpec = person.spec(
        *("true", MARKS["argv"]),
        env={"MARKED": MARKS["env"]},
        notify=f"true {MARKS['notify']}",
        output_file=f"{MARKS['output_file']}.log",
        secrets={"HELD": MARKS["secrets"]},
    )
    return spec


async def anns_job(ann: Client) -> int:
    await ann.stub.SetSecret(pb.SetSecretRequest(name=MARKS["secrets"], value="of ann"))
    await upload(ann, b"data of the matrix")
    spec = marked(ann)
    spec.gpu_mode = job_pb2.GPU_MODE_NEVER
    spec.devices.add(count=1)
    spec.cpu_argv[:] = ["true", MARKS["cpu_argv"]]
    spec.files.append(FILE)
    for data in (BYTES, RIGHT):
        await upload(ann, data)
    spec.folder.CopyFrom(folder(RIGHT))
    spec.results.append(MARKS["results"])
    spec.keep.append(MARKS["keep"])
    left = ann.spec("sh", "-c", f"touch {MARKS['inputs']}", results=[MARKS["inputs"]], cwd="")
    other = (await ann.submit_specs([left])).first_job_id
    assert (await ann.wait(other)).state == job_pb2.JOB_STATE_SUCCEEDED
    spec.inputs.add(job_id=other, pattern=MARKS["inputs"])
    spec.cwd, spec.output_file = "", str(ann.cwd / spec.output_file)
    spec.environment.setup = f"true {MARKS['environment']}"
    job = (await ann.submit_specs([spec])).first_job_id
    assert (await ann.wait(job)).state == job_pb2.JOB_STATE_SUCCEEDED
    return job


@pytest.mark.parametrize("output", ["owner", "team"])
async def test_each_call_tells_each_role_of_a_job_what_sight_says(private: tuple[Fleet, Path], output: str) -> None:
    fleet, settings = private
    settings.write_text(f'[privacy]\noutput = "{output}"\n')
    fleet.scheduler.signal(signal.SIGHUP)
    is_shared = output == "team"
    async with everybody(fleet) as (callers, ended):
        viewer = next(each for each in callers if each.role is Role.VIEWER)
        async with dial(fleet.scheduler.address, None) as channel:

            async def is_applied() -> bool:
                reason, _ = await told(channel, "Scheduler/GetStory", ended, viewer.token)
                return (reason is None) == is_shared

            await until("the setting is applied", is_applied)
            whole: dict[str, set[str]] = {}
            """What the admin is told, who comes first: what others are told of it is the part that they may see."""
            for who in callers:
                jobs = {ended, who.job} - {0}
                asked = [
                    (call, job)
                    for call in METHODS
                    for job in sorted(jobs)
                    if call not in NEVER_ASKED and not (job == who.job and KIND[call.partition("/")[2]] == CHANGES)
                ]
                answers = await asyncio.gather(*(told(channel, call, job, who.token) for call, job in asked))
                for (call, job), (reason, text) in zip(asked, answers, strict=True):
                    where = f"{call} of job {job} by {who.name}, output = {output}: {reason} {text[:500]}"
                    seen = {name for name, mark in MARKS.items() if mark in text}
                    if who.role is Role.ADMIN:
                        whole[call] = seen
                    if not who.may_ask(call, job):
                        assert reason is Reason.PERMISSION_DENIED and not seen, where
                        continue
                    assert reason is not Reason.PERMISSION_DENIED, where
                    may_see = marks_of(who, ended, is_shared)
                    assert seen <= may_see or job == who.job, where
                    if job == ended and call in CARRY_SPECS:
                        assert seen == whole[call] & may_see, where
                    if KIND[call.partition("/")[2]] == "what a job does" and reason is not Reason.NOT_BUILT:
                        is_reader = is_shared or who.sees_all(job)
                        left_none = call == "Scheduler/DownloadFile" and reason is Reason.FILE_NOT_FOUND
                        has_ended = call == "Scheduler/AccessFiles" and reason is Reason.JOB_FINISHED
                        is_told = reason is None or left_none or has_ended
                        assert is_told if is_reader else reason is Reason.OUTPUT_PRIVATE, where
            assert whole["Scheduler/GetJob"] == MARKS.keys()
            tells = {call for call, seen in whole.items() if seen and call in CARRY_SPECS}
            assert tells <= {call for call, method in METHODS.items() if carries_spec(method.output_type)}
            for call in ("Queue", "Explain", "Watch", "StreamOutput", "ListModels"):
                assert f"Scheduler/{call}" in tells, (
                    f"{call} is asked so that it tells nothing: the rest proves nothing"
                )


CAPPED = "ml-of-ann"
TELL_CAPS = ("Queue", "GetJob", "Explain", "Watch", "ListModels")
"""Calls that say why something of a group waits."""


@pytest.mark.parametrize("output", ["owner", "team"])
async def test_what_a_group_has_and_may_have_is_told_as_what_its_members_jobs_write(
    private: tuple[Fleet, Path], output: str
) -> None:
    fleet, settings = private
    settings.write_text(f'[privacy]\noutput = "{output}"\n')
    fleet.scheduler.signal(signal.SIGHUP)
    async with fleet.client() as admin:
        await admin.stub.SetGroup(pb.SetGroupRequest(name=CAPPED, gpus_max=1, add_members=["ann", "cleo"]))
        tokens = {
            user: (await admin.stub.CreateToken(pb.CreateTokenRequest(user=user, role=pb.ROLE_USER))).secret
            for user in ("ann", "bob", "cleo")
        }
        async with fleet.client(tokens["ann"]) as ann, fleet.client(tokens["bob"]) as bob:
            one = [job_pb2.DeviceRequest(count=1)]
            runs = await ann.submit("sleep", "100000", devices=one)
            await until("it runs", lambda: is_running(ann, runs))
            waits = await ann.submit("true", devices=one)
            worker = job_pb2.JobSpec(cwd="/", devices=one)
            model = sessions_pb2.Model(name="capped", entry_point="a:B", worker=worker, min_workers=1, max_workers=1)
            await ann.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))

            async def is_applied() -> bool:
                argv = (await bob.job(runs)).spec.argv
                return (argv == ["sleep", "100000"]) == (output == "team")

            await until("the setting is applied", is_applied)
            usage = capacity_pb2.ListUsageRequest(group=capacity_pb2.USAGE_GROUP_GROUP)
            async with dial(fleet.scheduler.address, None) as channel:
                for user, token in tokens.items():
                    is_member = user != "bob"
                    for call in TELL_CAPS:
                        # Of a model, what its jobs do is its owner's.
                        reads = output == "team" or (user == "ann" if call == "ListModels" else is_member)
                        _, text = await told(channel, f"Scheduler/{call}", waits, token)
                        assert f"group {CAPPED} holds 1 of the 1" in text or not reads, (user, call, text)
                        assert reads or f"group {CAPPED}" not in text, (user, call, text)
                        assert reads or PRIVATE_CAPS["GROUP_CAP"] in text, (user, call, text)
                    async with fleet.client(token) as person:
                        rows = {row.name for row in (await person.stub.ListUsage(usage)).rows}
                    reads = output == "team" or is_member
                    assert (CAPPED in rows, OTHER_GROUPS in rows) == (reads, not reads), (user, rows)
            await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="capped"))
            await admin.cancel(waits, runs)
        await admin.stub.RemoveGroup(pb.RemoveGroupRequest(name=CAPPED))


async def is_running(person: Client, job: int) -> bool:
    return (await person.job(job)).state == job_pb2.JOB_STATE_RUNNING
