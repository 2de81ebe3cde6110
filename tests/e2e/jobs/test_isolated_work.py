"""All that a fleet does with jobs, on nodes that keep users apart; and nodes that take those of their owner alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest
from gpufleet.v1 import inference_pb2, job_pb2, node_pb2, scheduler_pb2, sessions_pb2

from gpufleet.net.addresses import parse_address
from gpufleet.security.tickets import connect_line
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.interpreters import NoInterpreter, python_of_all
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.e2e.typist import Typist
from tests.inference.http_service.test_child import is_alive
from tests.inference.http_service.test_shim import PROGRAM
from tests.node_agent.namespaces import needs_namespaces

pytestmark = needs_namespaces

AUTO = {"GPUCTL_AGENT_ISOLATION_USERS": "auto"}
NOBODY = 65534
FIRST_UID = 1_900_000_000
SUCCEEDED, FAILED, RUNNING = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_RUNNING


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """A folder that everybody may enter and jobs see as it is: /tmp is their own."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-test-", dir="/srv"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def two_nodes(long_lived: Callable[[str], AbstractContextManager[None]], outside: Path) -> Iterator[Fleet]:
    """A scheduler and two nodes whose agents found by themselves that they can keep users apart."""
    fleet = Fleet(outside / "fleet")

    async def start() -> None:
        await fleet.scheduler.start()
        for name in ("n1", "n2"):
            await fleet.add_node(name, environment=AUTO)

    try:
        with long_lived("a fleet that keeps users apart"):
            asyncio.run(start())
        yield fleet
    finally:
        asyncio.run(fleet.end())


@pytest.fixture
async def ann(two_nodes: Fleet) -> AsyncIterator[Client]:
    """A person who is no admin."""
    async with two_nodes.client() as admin, person_of(two_nodes, admin, "ann") as person:
        yield person


@asynccontextmanager
async def person_of(fleet: Fleet, admin: Client, name: str) -> AsyncIterator[Client]:
    request = scheduler_pb2.CreateTokenRequest(user=name, role=scheduler_pb2.ROLE_USER)
    async with fleet.client((await admin.stub.CreateToken(request)).secret) as person:
        yield person


async def test_an_agent_that_is_root_keeps_users_apart_unasked_and_says_so(two_nodes: Fleet, ann: Client) -> None:
    node = await ann.node("n1")
    told = node.info.job_accounts
    assert (told.runs_as, told.account, told.ends_all_by) == (node_pb2.RUNS_AS_RANGE, "root", "pid namespace")
    job = await ann.submit("/bin/sh", "-c", "id -u; id -G", cwd="/", nodelist=["n1"])
    assert (await ann.wait(job)).state == SUCCEEDED
    assert {int(each) >= FIRST_UID for each in (await ann.stdout(job)).split()} == {True}


async def test_nothing_of_scheduler_and_agent_can_be_read_by_a_job(two_nodes: Fleet, ann: Client) -> None:
    # As open as anybody could have made the folders: what is in them guards itself.
    folders = [two_nodes.scheduler.data, *(agent.data for agent in two_nodes.agents.values())]
    before = [folder.stat().st_mode for folder in folders]
    for folder in folders:
        folder.chmod(0o755)
    try:
        token = two_nodes.scheduler.data / "admin.token"
        found = f"find {' '.join(map(str, folders))} -mindepth 1 -type f -readable 2>/dev/null"
        script = f"cat {token} && echo stolen; {found}; echo looked"
        job = await ann.wait(number := await ann.submit("/bin/sh", "-c", script, cwd="/", nodelist=["n1"]))
    finally:
        for folder, mode in zip(folders, before, strict=True):
            folder.chmod(mode)
    assert token.exists()
    assert job.state == SUCCEEDED
    said = (await ann.stdout(number)).decode().split()
    public = {str(folder / name) for folder in folders for name in PUBLIC}
    assert [each for each in said if each not in public] == ["looked"]


PUBLIC = ("listening", "link.json")
"""Files that tell where a program is and how it stands with others, and no secret."""


async def test_what_an_attempt_keeps_belongs_to_the_account_of_the_next_one(ann: Client) -> None:
    script = """
        [ -e ckpt/step ] || { mkdir ckpt; echo $GPUFLEET_NODE >ckpt/step; exit 1; }
        [ $(stat -c %u ckpt ckpt/step | sort -u) = $(id -u) ] && echo $GPUFLEET_NODE >>ckpt/step && cat ckpt/step
    """
    job = await ann.submit("/bin/sh", "-c", script, cwd="", keep=["ckpt/**"], retries=1)
    ended = await ann.wait(job)
    assert (ended.state, ended.attempt_count) == (SUCCEEDED, 2), await ann.story(job)
    nodes = [attempt.ranks[0].node for attempt in ended.attempts]
    assert (await ann.stdout(job)).decode().split() == nodes


async def test_a_gang_runs_as_its_user_on_each_node(ann: Client) -> None:
    script = 'echo "$NODE_RANK of $NNODES by $(id -u)"; ls /proc | grep -c "^[0-9]"'
    job = await ann.wait(number := await ann.submit("/bin/sh", "-c", script, cwd="/", gpus=2, node_count=2))
    assert (job.state, len(job.attempts[-1].ranks)) == (SUCCEEDED, 2)
    streams = await ann.output(number)
    said = sorted(streams[1, rank, job_pb2.STREAM_STDOUT].decode().split("\n")[0] for rank in (0, 1))
    assert [line.partition(" by ")[0] for line in said] == ["0 of 2", "1 of 2"]
    assert all(int(line.rpartition(" ")[2]) >= FIRST_UID for line in said)


async def test_pipes_terminals_signals_and_copies_of_output_are_as_anywhere(
    two_nodes: Fleet, ann: Client, outside: Path
) -> None:
    number = await ann.submit("/bin/sh", "-c", "cat; exit 3", cwd="/", input=job_pb2.INPUT_MODE_PIPE)
    async with Typist(ann, number) as typist:
        await typist.type(b"hello\n")
        await typist.shows(b"hello\n")
        await typist.end_input()
        await typist.end()
    assert typist.exit == job_pb2.ExitStatus(code=3)

    size = job_pb2.TerminalSize(columns=132, rows=50)
    number = await ann.submit("/bin/sh", cwd="/", input=job_pb2.INPUT_MODE_TERMINAL)
    async with Typist(ann, number, size=size) as typist:
        # A shell that reads a line may not look at a trap before it has the next one.
        await typist.type(
            b"stty size; trap 'echo got it; exit 5' USR1; test -t 0 && echo terminal $((1+1)); "
            b"while :; do sleep 0.1; done\n"
        )
        await typist.shows(b"50 132\r\n")
        await typist.shows(b"terminal 2\r\n")
        await typist.send(signal=signal.SIGUSR1)
        await typist.shows(b"got it\r\n")
        await typist.end()
    assert typist.exit == job_pb2.ExitStatus(code=5)

    uid = int(await ann.stdout(await _ended(ann, "/usr/bin/id", "-u")))
    own = outside / "own"
    own.mkdir()
    os.chown(own, uid, uid)
    copied = await ann.submit("/bin/echo", "hello", cwd="/", nodelist=["n1"], output_file=str(own / "log"))
    assert (await ann.wait(copied)).state == SUCCEEDED
    assert ((own / "log").read_text(), (own / "log").stat().st_uid) == ("hello\n", uid)
    refused = await ann.submit("/bin/echo", "hello", cwd="/", nodelist=["n1"], output_file=str(outside / "log"))
    assert (await ann.wait(refused)).exit_reason == "OUTPUT_FILE_UNUSABLE"


async def _ended(person: Client, *argv: str) -> int:
    """A job on n1 that has succeeded."""
    number = await person.submit(*argv, cwd="/", nodelist=["n1"])
    assert (await person.wait(number)).state == SUCCEEDED
    return number


async def test_a_program_that_is_served_runs_as_its_owner_and_is_reached(two_nodes: Fleet, ann: Client) -> None:
    (two_nodes.work / "program.py").write_text(PROGRAM.replace("self.path} of", "self.path} by {os.getuid()} of"))
    python = _python_of_all()
    site = sysconfig.get_path("purelib")
    # What `-m gpufleet.inference` does, where the interpreter of the environment is root's alone.
    begin = (
        f"import site, runpy; site.addsitedir({site!r}); runpy.run_module('gpufleet.inference', None, '__main__', True)"
    )
    worker = ann.spec(python, "-P", "-c", begin, gpus=1)
    http = sessions_pb2.HttpService(argv=[python, "program.py", "$LISTEN"], port_env="LISTEN", ready_path="/health")
    model = sessions_pb2.Model(name="chat", worker=worker, http=http, min_workers=1, max_workers=1)
    await ann.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))
    replica = await _ready_replica(two_nodes)
    at = parse_address(replica.endpoint)
    reader, writer = await asyncio.open_connection(at.host, at.port)
    writer.write(connect_line(replica.connect_key) + b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(DEADLINE_SECONDS):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert int(answer.rpartition(b" by ")[2].split()[0]) >= FIRST_UID
    await ann.stub.StopModel(sessions_pb2.StopModelRequest(name="chat"))
    await ann.wait(replica.job_id, job_pb2.JOB_STATE_CANCELLED, SUCCEEDED)


def _python_of_all() -> str:
    try:
        return python_of_all()
    except NoInterpreter as problem:
        pytest.skip(str(problem))


async def _ready_replica(fleet: Fleet) -> sessions_pb2.WorkerInfo:
    async with fleet.client(fleet.scheduler.token("gateway")) as gateway, asyncio.timeout(DEADLINE_SECONDS):
        async for answer in gateway.stub.WatchWorkers(sessions_pb2.WatchWorkersRequest(model="chat")):
            for each in answer.workers:
                if each.state == inference_pb2.WORKER_STATE_READY:
                    return each
    raise AssertionError("the stream has ended")


async def test_of_a_killed_keeper_nothing_is_left_and_the_job_runs_again_as_its_user(
    two_nodes: Fleet, ann: Client, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    agent, mark = two_nodes.agents["n2"], f"1004.{os.getpid()}"
    script = f"id -u; (setsid sleep {mark} >/dev/null 2>&1 &); [ $GPUFLEET_ATTEMPT = 2 ] || exec sleep 1000"
    number = await ann.submit("/bin/sh", "-c", script, cwd="/", nodelist=["n2"])

    async def has_said() -> bool:
        return b"\n" in (await ann.output(number, follow=False)).get((1, 0, job_pb2.STREAM_STDOUT), b"")

    await until("it has said who it is", has_said)
    (keeper,) = agent.keeper_pids()
    agent.kill()
    os.kill(keeper, signal.SIGKILL)
    with long_lived("the next agent of a node that keeps users apart"):
        agent.spawn()
        await two_nodes.node_is_ready("n2")
        job = await ann.wait(number)
    assert (job.state, job.attempt_count, job.attempts[0].exit_reason) == (SUCCEEDED, 2, "EXIT_UNKNOWN")
    streams = await ann.output(number)
    assert streams[1, 0, job_pb2.STREAM_STDOUT] == streams[2, 0, job_pb2.STREAM_STDOUT]
    await until("all of it has gone", lambda: not _running(f"sleep\0{mark}"))


def _running(command: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(path.parent.name)
        try:
            if path.read_bytes().startswith(command.encode()) and is_alive(pid):
                found.append(pid)
        except OSError:
            continue
    return found


async def test_an_agent_that_is_not_root_takes_the_jobs_of_its_owner_alone(outside: Path) -> None:
    async with Fleet(outside / "alone") as fleet, fleet.client() as admin:
        data = outside / "agent-of-nobody"
        data.mkdir(mode=0o700)
        token = data / "joining.token"
        request = scheduler_pb2.CreateTokenRequest(user="cat", role=scheduler_pb2.ROLE_NODE)
        token.write_text((await admin.stub.CreateToken(request)).secret + "\n")
        token.chmod(0o600)
        log = outside / "log-of-nobody"
        log.mkdir()
        for each in (data, token, log):
            os.chown(each, NOBODY, NOBODY)
        # What runs the tests may lie where root alone may read.
        reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        not_root = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *reads)
        await fleet.add_node("n1", "--token-file", str(token), environment=AUTO, data=data, inside=not_root)
        told = (await admin.node("n1")).info.job_accounts
        assert (told.runs_as, told.owner, told.why) == (node_pb2.RUNS_AS_OWNER, "cat", "its agent is not root")
        async with person_of(fleet, admin, "cat") as cat, person_of(fleet, admin, "bob") as bob:
            # The node's credential would make whoever reads it that node.
            steal = ("/bin/cat", str(data / "credential.token"))
            for other in (bob, admin):
                problem = await refusal(other.stub.Submit(scheduler_pb2.SubmitRequest(specs=[other.spec(*steal)])))
                assert problem.reason.name == "NEVER_FITS"
                assert "node n1 runs jobs of cat alone" in problem.message
                assert "--shared-account" in problem.next_step
            own = await cat.wait(number := await cat.submit("/bin/sh", "-c", "id -u", cwd="/"))
            assert own.state == SUCCEEDED
            assert await cat.stdout(number) == f"{NOBODY}\n".encode()
            # Where somebody else's node is there, it goes to that.
            await fleet.add_node("n2")
            elsewhere = await bob.wait(await bob.submit("/bin/true", cwd="/"))
            assert [rank.node for rank in elsewhere.attempts[-1].ranks] == ["n2"]
