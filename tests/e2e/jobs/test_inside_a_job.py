"""What a job knows of itself, and what its own gpuctl may do from inside, with nothing set by anybody."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from gpufleet.net.certificates import make_certificates
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet

GPUCTL = shlex.join([sys.executable, "-P", "-m", "gpufleet.cli"])
SAYS = (
    sys.executable,
    "-c",
    "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('GPUFLEET_')}))",
)


async def said(person: Client, *job_ids: int) -> list[dict[str, str]]:
    """What each of these jobs found in its environment."""
    return [json.loads(await person.stdout(each)) for each in job_ids]


async def test_a_job_knows_its_name_its_user_its_nodes_its_end_and_where_it_was_submitted(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    began = time.time()
    job = await person.submit(*SAYS, name="resnet", seconds=600, submit_cwd=str(tmp_path))
    unlimited = await person.submit(*SAYS, env={"GPUFLEET_END_TIME": "1", "GPUFLEET_NODE": "n9"})
    known, other = await said(person, job, unlimited)
    user = (await person.job(job)).user
    assert known["GPUFLEET_JOB_NAME"] == "resnet"
    assert known["GPUFLEET_USER"] == user
    assert known["GPUFLEET_NODE"] == known["GPUFLEET_NODELIST"] == "n1"
    assert known["GPUFLEET_SUBMIT_CWD"] == str(tmp_path)
    assert began + 599 <= int(known["GPUFLEET_END_TIME"]) <= time.time() + 600
    assert "GPUFLEET_END_TIME" not in other, "it has no limit, and that of its submitter is not its own"
    assert other["GPUFLEET_NODE"] == "n1"
    assert other["GPUFLEET_SUBMIT_CWD"] == str(person.cwd), "nobody said from where: its own folder"


async def test_the_nodes_of_a_gang_stand_in_the_order_of_its_ranks(fleet: Fleet, admin: Client) -> None:
    for name in ("n1", "n2"):
        await fleet.add_node(name, "--virtual-gpus", "1")
    script = "echo $GPUFLEET_NODE_RANK $GPUFLEET_NODE $GPUFLEET_NODELIST"
    job = await admin.submit("sh", "-c", script, gpus=2, node_count=2)
    output = await admin.output(job)
    lines = [output[1, rank, job_pb2.STREAM_STDOUT].decode().split() for rank in (0, 1)]
    nodes = lines[0][2].split(",")
    assert sorted(nodes) == ["n1", "n2"]
    assert lines == [[str(rank), nodes[rank], ",".join(nodes)] for rank in (0, 1)]


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
async def test_gpuctl_inside_a_job_reads_and_requeues_it_with_nothing_else_set(tmp_path: Path, has_tls: bool) -> None:
    flags: Sequence[str] = ()
    known: Sequence[str] = ("--virtual-gpus", "1")
    tls = make_certificates(tmp_path / "tls", ["127.0.0.1"]) if has_tls else None
    if tls is not None:
        flags = ("--tls-cert", str(tls.cert_file), "--tls-key", str(tls.key_file))
        known = (*known, "--ca-file", str(tls.ca_file))
    fleet = Fleet(tmp_path / "fleet", *flags)
    fleet.ca_file = tls.ca_file if tls is not None else None
    script = f"""
        if [ $GPUFLEET_ATTEMPT = 2 ]; then echo again; exit 0; fi
        echo first
        {GPUCTL} job $GPUFLEET_JOB_ID -o name && {GPUCTL} logs $GPUFLEET_JOB_ID >/dev/null || exit 3
        {GPUCTL} job 1000 && exit 4
        {GPUCTL} queue && exit 5
        {GPUCTL} requeue $GPUFLEET_JOB_ID --reason 'no node left' || exit 6
        sleep 600
    """
    async with fleet, fleet.client() as admin:
        await fleet.add_node("n1", *known)
        job = await admin.submit("sh", "-c", script, env={"XDG_CONFIG_HOME": str(tmp_path / "nobody")})
        ended = await admin.wait(job)
        errors = (await admin.output(job, attempt=1)).get((1, 0, job_pb2.STREAM_STDERR), b"").decode()
        assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, errors
        assert ended.attempt_count == 2
        assert f"the token of job {job} is good for that job alone" in errors
        assert f"a token of job {job} may not call Scheduler/Queue" in errors
        assert await admin.stdout(job) == b"again\n"
        assert any("no node left" in line for line in await admin.story(job))


async def test_its_token_outlives_a_restart_of_the_scheduler(fleet: Fleet, admin: Client, tmp_path: Path) -> None:
    await fleet.add_node()
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; {GPUCTL} job $GPUFLEET_JOB_ID -o name"
    job = await admin.submit("sh", "-c", script, env={"XDG_CONFIG_HOME": str(tmp_path / "nobody")})
    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    await fleet.scheduler.stop()
    await fleet.scheduler.start()
    go.touch()
    async with fleet.client() as person:
        assert (await person.wait(job)).state == job_pb2.JOB_STATE_SUCCEEDED
        assert await person.stdout(job) == f"{job}\n".encode()


async def test_a_job_that_is_submitted_from_a_job_gets_nothing_of_its_way(fleet: Fleet, admin: Client) -> None:
    """Not even with --env-all, where the submitting job's variables go along."""
    await fleet.add_node()
    taken = {"GPUFLEET_JOB_TOKEN": "gf_stale", "GPUFLEET_SCHEDULER": "elsewhere:1", "GPUFLEET_INSECURE": "1"}
    job = await admin.submit(*SAYS, env=taken)
    (known,) = await said(admin, job)
    assert known["GPUFLEET_JOB_TOKEN"].startswith("gf_") and known["GPUFLEET_JOB_TOKEN"] != "gf_stale"
    assert known["GPUFLEET_SCHEDULER"] == fleet.scheduler.address
    assert "GPUFLEET_INSECURE" not in known
