"""What a job is given of what other jobs left (`--input`), with real programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl

LEAVES = "mkdir -p out; printf model >out/m.pt; printf log >out/log; printf no >other"


async def leaves(person: Client, line: str = LEAVES, **fields: object) -> int:
    return await person.submit("/bin/sh", "-c", line, cwd="", results=["out/**"], **fields)


async def given(person: Client, line: str, *inputs: job_pb2.JobInput, **fields: object) -> int:
    return await person.submit("/bin/sh", "-c", line, cwd="", inputs=inputs, **fields)


def of(job: int, pattern: str = "out/**", name: str = "", index: int | None = None) -> job_pb2.JobInput:
    return job_pb2.JobInput(job_id=job, pattern=pattern, name=name, array_index=index)


async def test_a_job_begins_with_what_another_one_left_and_waits_for_its_success(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    job = await leaves(person, f"sleep 0.5; {LEAVES}")
    reads = "find * -type f | sort; cat out/m.pt models/out/m.pt"
    done = await gpuctl(
        shared_fleet, tmp_path, "run", "--input", f"{job}:out/**", "--input", f"{job}:*.pt=models", "--", reads
    )
    assert (done.returncode, done.stdout) == (0, "models/out/m.pt\nout/log\nout/m.pt\nmodelmodel"), done.stderr
    shown = await gpuctl(shared_fleet, tmp_path, "job", "last")
    assert f"--input '{job}:*.pt=models'" in shown.stdout
    later = await gpuctl(shared_fleet, tmp_path, "run", "--input", f"{job}:out/log", "--", "cat out/log")
    assert (later.returncode, later.stdout) == (0, "log"), later.stderr  # of a job that has ended


async def test_it_does_not_start_where_the_other_one_fails_unless_after_says_otherwise(person: Client) -> None:
    job = await leaves(person, f"{LEAVES}; sleep 0.5; exit 3")
    depends = await given(person, "true", of(job))
    any_end = job_pb2.Dependency(job_id=job, condition=job_pb2.DEPENDENCY_CONDITION_ANY)
    anyway = await given(person, "cat out/log", of(job), after=[any_end])
    ended = await person.wait(depends)
    assert (ended.state, ended.exit_reason) == (job_pb2.JOB_STATE_CANCELLED, "DEPENDENCY_FAILED")
    assert (await person.wait(anyway)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert await person.stdout(anyway) == b"log"


async def test_each_item_of_an_array_has_a_folder_of_its_own_and_one_of_them_has_none(person: Client) -> None:
    array = job_pb2.ArraySpec(indices="3,5")
    job = await leaves(person, "mkdir out; printf $GPUFLEET_ARRAY_INDEX >out/n", array=array)
    everything = await given(person, "find * -type f | sort; cat item-3/out/n", of(job, name="sweep"), of(job))
    one = await given(person, "cat out/n", of(job, index=5))
    assert (await person.wait(everything)).state == job_pb2.JOB_STATE_SUCCEEDED
    files = b"item-3/out/n\nitem-5/out/n\nsweep/item-3/out/n\nsweep/item-5/out/n\n3"
    assert await person.stdout(everything) == files
    await person.wait(one)
    assert await person.stdout(one) == b"5"
    assert (await person.job(one)).spec.inputs[0].job_id == job + 2


async def test_an_attempt_that_is_made_again_begins_with_it_again(person: Client) -> None:
    job = await leaves(person)
    line = "cat out/log; rm out/log; [ $GPUFLEET_ATTEMPT = 2 ]"
    again = await given(person, line, of(job), retries=1)
    assert (await person.wait(again)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert [each.number for each in (await person.job(again)).attempts] == [1, 2]
    assert await person.stdout(again) == b"log", "the newest attempt has it, too"


async def test_what_is_not_left_ends_the_job_with_its_reason_or_is_refused_at_once(person: Client) -> None:
    job = await leaves(person, f"sleep 0.5; {LEAVES}")
    early = await given(person, "true", of(job, "*.bin"))
    ended = await person.wait(early)
    assert (ended.state, ended.exit_reason) == (job_pb2.JOB_STATE_FAILED, "INPUT_UNUSABLE"), ended
    assert f"job {job} left no file that '*.bin' chooses" in ended.exit_message
    plain = (await person.run("true")).id
    array = await leaves(person, "true", array=job_pb2.ArraySpec(indices="1-2"))
    for inputs, reason, field, why in (
        ([of(job, "*.bin")], Reason.INPUT_UNUSABLE, "inputs[0].pattern", f"job {job} left no file"),
        ([of(plain)], Reason.INVALID_ARGUMENT, "inputs[0].job_id", "submitted without --download"),
        ([of(10**9)], Reason.JOB_NOT_FOUND, "", "there is no job"),
        ([of(array, index=3)], Reason.ITEM_NOT_FOUND, "", f"array {array} has no item 3"),
        ([of(job, index=1)], Reason.INVALID_ARGUMENT, "inputs[0].array_index", "is no array"),
        ([of(job, name="../x")], Reason.INVALID_ARGUMENT, "inputs[0].name", ""),
        ([of(job, name="/x")], Reason.INVALID_ARGUMENT, "inputs[0].name", ""),
        ([of(job, "!out")], Reason.INVALID_ARGUMENT, "inputs[0].pattern", "chooses none"),
        ([of(job)] * 101, Reason.INVALID_ARGUMENT, "inputs", "100 are the most"),
    ):
        spec = person.spec("true", cwd="", inputs=inputs)
        for dry_run in (True, False):
            request = scheduler_pb2.SubmitRequest(specs=[spec], dry_run=dry_run)
            error = await refusal(person.stub.Submit(request))
            assert (error.reason, [each.field for each in error.violations][:1]) == (
                reason,
                [f"specs[0].{field}"] if field else [],
            ), (inputs, error)
            assert why in error.message
    await person.wait(array)


@pytest.mark.parametrize("name", ["", "of-another"])
async def test_a_file_in_the_same_place_ends_the_job_and_a_folder_of_their_own_makes_room(
    shared_fleet: Fleet, person: Client, tmp_path: Path, name: str
) -> None:
    job = await leaves(person)
    await person.wait(job)
    (tmp_path / "mine").write_text("mine")
    done = await gpuctl(
        shared_fleet,
        tmp_path,
        *("run", "--file", "mine=out/log", "--input", f"{job}:out/**{f'={name}' if name else ''}"),
        *("--", f"cat out/log {name}/out/log"),
    )
    if name:
        assert (done.returncode, done.stdout) == (0, "minelog"), done.stderr
    else:
        assert done.returncode != 0 and "'out/log' of --input cannot be laid out" in done.stderr, done.stderr


async def test_where_jobs_are_isolated_the_files_belong_to_the_user_of_the_job(fleet: Fleet, admin: Client) -> None:
    if os.geteuid() != 0:
        pytest.skip("only an agent that is root runs jobs as other accounts")
    await fleet.add_node("n1", "--cpus", "2", environment={"GPUCTL_AGENT_ISOLATION_USERS": "range"})
    job = await leaves(admin)
    mine = await given(admin, "[ -O out/m.pt ] && [ -O out ] && printf s >>out/m.pt && cat out/m.pt", of(job))
    ended = await admin.wait(mine)
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, ended
    assert await admin.stdout(mine) == b"models"
