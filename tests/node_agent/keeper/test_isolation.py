"""Attacks of one user's job on another's, on the keeper and on the machine: each works where jobs are not isolated."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.jobs.runs import FENCE_US_MIN, ExitCode, ExitSignal, InputMode, StopCause
from node_agent.core.attempt import Limits
from node_agent.core.fence import fence_deadline_us
from node_agent.core.launch import HOME_PATH, Isolation, Launch, Launched, Refusal, RefusalReason
from node_agent.core.outcome import AttemptPhase, Stream
from node_agent.keeper import linux
from node_agent.keeper.linux import boottime_us
from node_agent.keeper.state_dir import StateDir
from tests.node_agent.keeper.keeping import SECOND_US, Node, is_alive, read_all, until
from tests.node_agent.namespaces import needs_namespaces

pytestmark = needs_namespaces

ALICE, BOB = 1_900_000_001, 1_900_000_002


def score_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def isolated(node: Node, job_id: int, text: str, uid: int = ALICE, **changes: object) -> Launch:
    """A shell of this account, kept from the node's own folder."""
    isolation = Isolation(uid=uid, gid=uid, hidden=(str(node.state_dir),))
    more = {"cwd": "/", "isolation": isolation, **changes}
    return node.shell(job_id, text, **more)


async def said_by(node: Node, text: str, **changes: Any) -> str:
    """What a job prints on both streams, where it ends with code 0."""
    agent = await node.open()
    end, out, err = await agent.run(isolated(node, 1, text, **changes))
    assert end.status == ExitCode(code=0), (end, out, err)
    return out.decode()


@pytest.mark.parametrize(("account", "name"), [("ann@example.com", "ann@example.com"), ("root", f"root-{ALICE}")])
async def test_a_number_without_a_name_gets_one_where_its_job_looks(node: Node, account: str, name: str) -> None:
    named = Isolation(uid=ALICE, gid=ALICE, account=account)
    tries = "(echo x >> /etc/passwd) 2> /dev/null && echo written"
    said = await said_by(node, f"id -un; id -gn; getent passwd {ALICE}; {tries}; id -u root", isolation=named)
    entry = f"{name}:x:{ALICE}:{ALICE}:{account}:{HOME_PATH}:/bin/sh"
    assert said.splitlines() == [name, name, entry, "0"]
    with pytest.raises(KeyError):
        pwd.getpwnam(f"{account}-{ALICE}")


async def test_a_job_is_its_users_without_groups_capabilities_or_a_way_to_get_them(node: Node) -> None:
    said = await said_by(node, "id -u; id -g; id -G; grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    uid, gid, groups, *facts = said.split("\n")
    assert {uid, gid, groups} == {str(ALICE)}
    values = dict(line.split(":\t") for line in facts if line)
    assert values.pop("NoNewPrivs") == "1"
    assert len(values) == 5
    assert {int(value, 16) for value in values.values()} == {0}


@pytest.mark.parametrize("is_allowed", [False, True])
async def test_a_job_makes_a_user_namespace_only_where_the_settings_allow_it(node: Node, is_allowed: bool) -> None:
    isolation = Isolation(uid=ALICE, gid=ALICE, user_namespaces=is_allowed)
    tries = (
        "unshare --user true && echo made; unshare --user --map-root-user --mount mount -t tmpfs x /mnt && echo mounted"
    )
    said = await said_by(node, f"({tries}) 2>/dev/null; (: | cat) && echo piped", isolation=isolation)
    assert said.split() == [*(["made", "mounted"] if is_allowed else []), "piped"]


async def test_what_others_run_is_neither_seen_nor_reached(node: Node) -> None:
    agent = await node.open()
    other = await agent.start(isolated(node, 2, "SECRET=sesame exec sleep 1000", uid=BOB))
    same = await agent.start(isolated(node, 3, "exec sleep 1000"))
    targets = f"{other.pid} {same.pid} {agent.keeper_pid}"
    text = f"""
    for pid in {targets}; do
        cat /proc/$pid/environ 2>/dev/null && echo read $pid
        kill -9 $pid 2>/dev/null && echo killed $pid
    done
    kill -9 -1; ls /proc | grep -c '^[0-9]'; kill -9 1 2>/dev/null; grep -l sesame /proc/[0-9]*/environ 2>/dev/null
    echo lives
    """
    end, out, _ = await agent.run(isolated(node, 1, f"trap '' TERM; ({text})"))
    assert b"read" not in out
    assert b"killed" not in out
    assert b"sesame" not in out
    assert is_alive(agent.keeper_pid)
    for view in (other, same):
        assert (await agent.view(view.key)).phase is AttemptPhase.RUNNING
    assert end.processes_left == 0


async def test_the_agents_folder_is_empty_to_a_job_and_what_only_root_reads_is_closed(node: Node) -> None:
    secret = node.state_dir.parent / "admin.token"
    secret.write_text("admin")
    secret.chmod(0o600)
    said = await said_by(
        node, f"ls -A {node.state_dir} 2>&1; cat {secret} 2>/dev/null; cat /etc/shadow 2>/dev/null; true"
    )
    assert "keepers" not in said
    assert "admin" not in said.replace("admin.token", "")
    assert "root:" not in said


async def test_tmp_home_and_shared_memory_are_a_jobs_own_and_gone_with_it(node: Node) -> None:
    mark = Path("/tmp") / f"gpufleet-mark-{os.getpid()}"
    mark.touch()
    try:
        agent = await node.open()
        places = "/tmp /var/tmp /dev/shm /run/gpufleet/home"
        text = f"for each in {places}; do ls -A $each; echo x > $each/mine && cat $each/mine; done; sleep 1000"
        first = await agent.start(isolated(node, 1, text))
        assert await agent.output(first, 8) == b"x\nx\nx\nx\n"
        second = await agent.start(isolated(node, 2, text))
        assert await agent.output(second, 8) == b"x\nx\nx\nx\n", "of the same user, too"
        space = StateDir(node.state_dir).space(first.key)
        assert (space / "tmp" / "mine").exists()
        await agent.keepers.kill(first.key, StopCause.CANCELLED)
        await agent.end(first)
        await until(lambda: not space.exists(), "the removal of its space")
    finally:
        mark.unlink()


@pytest.fixture
def gpu_nodes() -> Iterator[tuple[str, str]]:
    """Two nodes that stand for GPUs: everybody may open them, as those of NVIDIA's driver."""
    paths = [f"/dev/gpufleet-test{number}" for number in (0, 1)]
    for path in paths:
        Path(path).unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        Path(path).chmod(0o666)
    yield paths[0], paths[1]
    for path in paths:
        Path(path).unlink()


async def test_only_the_devices_that_were_given_can_be_opened(node: Node, gpu_nodes: tuple[str, str]) -> None:
    given, other = gpu_nodes
    isolation = Isolation(uid=ALICE, gid=ALICE, devices=(given,))
    text = (
        f": < {given} && echo given; (: < {other}) 2>/dev/null && echo other; mknod /tmp/x c 1 3 2>/dev/null && echo 1"
    )
    said = await said_by(node, f"{text}; : < /dev/null && : < /dev/urandom && echo common", isolation=isolation)
    assert said.split() == ["given", "common"]


async def test_a_daemon_is_gone_with_its_job_and_a_job_cannot_end_what_watches_over_it(node: Node) -> None:
    agent = await node.open()
    bystander = await agent.start(isolated(node, 2, "exec sleep 1000", uid=BOB))
    mark = f"1000.{os.getpid()}"
    daemon = f"(env -i setsid sh -c 'echo > /tmp/started; exec sleep {mark}' </dev/null >/dev/null 2>&1 &)"
    text = f"({daemon}); kill -9 $PPID; until [ -e /tmp/started ]; do :; done; exit 3"
    view = await agent.start(isolated(node, 1, text))
    end = await agent.end(view)
    assert (end.status, end.processes_left) == (ExitCode(code=3), 0)
    assert not _running(f"sleep\0{mark}")
    assert (await agent.view(bystander.key)).phase is AttemptPhase.RUNNING


def _running(command: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(command.encode()):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


async def test_signals_codes_terminals_and_limits_are_as_without_isolation(node: Node) -> None:
    agent = await node.open()
    obedient = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 1000 & wait; done"
    view = await agent.start(isolated(node, 1, obedient))
    await agent.output(view, len("ready\n"))
    await agent.keepers.stop(view.key, StopCause.PREEMPTED)
    assert (await agent.end(view)).status == ExitCode(code=7)
    assert read_all(view, Stream.STDOUT) == b"ready\nbye\n"

    stubborn = await agent.start(isolated(node, 2, "trap '' TERM; echo ready; while :; do sleep 1000; done"))
    await agent.output(stubborn, len("ready\n"))
    await agent.keepers.stop(stubborn.key, StopCause.CANCELLED, grace_us=SECOND_US // 10)
    assert (await agent.end(stubborn)).status == ExitSignal(signal=signal.SIGKILL)

    limited = await agent.start(isolated(node, 3, "sleep 1000", limits=Limits(time_limit_us=1, grace_us=SECOND_US)))
    assert (await agent.end(limited)).status == ExitSignal(signal=signal.SIGTERM)

    text = "test -t 0 && test -t 1 && : > /dev/tty && echo terminal; echo > /dev/stdout; ulimit -n"
    end, out, _ = await agent.run(isolated(node, 4, text, input=InputMode.TERMINAL, rlimits={"NOFILE": (100, 200)}))
    assert (end.status, out.split()) == (ExitCode(code=0), [b"terminal", b"100"])


async def test_a_fence_ends_an_isolated_attempt_with_all_that_it_has_started(node: Node) -> None:
    agent, mark = await node.open(), f"1005.{os.getpid()}"
    text = f"(setsid sleep {mark} >/dev/null 2>&1 &); trap '' TERM; echo ready; while :; do sleep 1000; done"
    limits = Limits(fence_us=FENCE_US_MIN, grace_us=SECOND_US // 10)
    # The last heartbeat that was acknowledged is so old that until the fence no more is left than some launches take.
    began_us = boottime_us()
    await agent.run(isolated(node, 2, "true"))
    room_us = 2 * SECOND_US + 5 * (boottime_us() - began_us)
    sent_us = boottime_us() + room_us - fence_deadline_us(0, FENCE_US_MIN)
    launch = replace(isolated(node, 1, text, limits=limits), heartbeat_sent_us=sent_us)
    view = await agent.start(launch)
    await agent.output(view, len("ready\n"))
    await until(lambda: _running(f"sleep\0{mark}"), "the process in a session of its own")
    end = await agent.end(view)
    assert (end.status, end.stop_cause) == (ExitSignal(signal=signal.SIGKILL), StopCause.FENCED)
    assert not _running(f"sleep\0{mark}")


async def test_files_of_a_job_are_its_own_to_read_and_change(node: Node) -> None:
    folder = node.state_dir.parent / "files"
    folder.mkdir(mode=0o700)
    (folder / "data").write_text("given")
    (folder / "data").chmod(0o600)
    isolation = Isolation(uid=ALICE, gid=ALICE, files=str(folder), hidden=(str(node.state_dir.parent),))
    said = await said_by(node, "cat data; echo made > more; cat more", cwd="/run/gpufleet/files", isolation=isolation)
    assert said == "givenmade\n"
    assert (folder / "more").read_text() == "made\n"


async def test_a_folder_or_program_that_the_account_may_not_use_is_said_to_be_so(node: Node) -> None:
    agent = await node.open()
    answer = await agent.keepers.launch(isolated(node, 1, "true", cwd=str(node.cwd.parent)))
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.CWD_MISSING
    assert isinstance(await agent.keepers.launch(isolated(node, 1, "true")), Launched), (
        "the same launch works elsewhere"
    )


async def test_what_lies_in_the_machines_tmp_is_said_to_be_hidden(node: Node) -> None:
    agent = await node.open()
    hint = "; /tmp is private to each job on this node, and nothing of the machine's is in it"
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        shutil.copy("/bin/true", f"{name}/program")
        os.chmod(name, 0o755)  # noqa: PTH101 - no Path in a coroutine
        for cwd in (name, f"{name}/none"):
            answer = await agent.keepers.launch(isolated(node, 1, "true", cwd=cwd))
            assert isinstance(answer, Refusal)
            assert (answer.reason, hint in answer.detail) == (RefusalReason.CWD_MISSING, True), answer
        for number, argv, env in (
            (2, (f"{name}/program",), "/bin"),
            (3, ("program",), f"/bin:{name}"),
        ):
            launch = isolated(node, number, "true", env={"PATH": env})
            launch = replace(launch, process=replace(launch.process, argv=argv))
            view = await agent.start(launch)
            end = await agent.end(view)
            assert end.status == ExitCode(code=127)
            assert hint in end.detail, end
        answer = await agent.keepers.launch(isolated(node, 4, "true", cwd="/no/such/folder"))
        assert isinstance(answer, Refusal) and "private" not in answer.detail


async def test_when_the_keeper_is_killed_nothing_of_an_isolated_attempt_is_left(node: Node) -> None:
    agent = await node.open()
    mark = f"1001.{os.getpid()}"
    view = await agent.start(
        isolated(node, 1, f"(env -i setsid sleep {mark} >/dev/null 2>&1 &); echo ready; sleep 1000")
    )
    await agent.output(view, len("ready\n"))
    await until(lambda: _running(f"sleep\0{mark}"), "the process in a session of its own")
    os.kill(agent.keeper_pid, signal.SIGKILL)
    (lost,) = (await agent.death()).attempts
    assert lost.phase is AttemptPhase.LOST
    assert lost.end is not None and lost.end.is_blameless, "it could not reach its keeper"
    assert not _running(f"sleep\0{mark}")
    assert not StateDir(node.state_dir).space(view.key).exists()
    agent.note_keepers()


def test_the_machine_is_as_it_was() -> None:
    assert shutil.which("sh")
    assert "/run/gpufleet" not in Path("/proc/self/mounts").read_text()


async def test_a_copy_of_the_output_is_written_by_the_rights_of_the_jobs_user_alone(node: Node, tmp_path: Path) -> None:
    closed, own = tmp_path / "closed", tmp_path / "own"
    closed.mkdir(mode=0o755)
    own.mkdir()
    os.chown(own, ALICE, ALICE)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    agent = await node.open()
    refused = await agent.keepers.launch(isolated(node, 1, "echo hello", output_file=str(closed / "log")))
    assert isinstance(refused, Refusal) and refused.reason is RefusalReason.OUTPUT_FILE_UNUSABLE
    assert "Permission denied" in str(refused) and not list(closed.iterdir())
    end, _, _ = await agent.run(isolated(node, 2, "echo hello", output_file=str(own / "log")))
    assert end.status == ExitCode(code=0)
    assert (own / "log").read_text() == "hello\n" and (own / "log").stat().st_uid == ALICE
    assert os.geteuid() == 0


async def test_a_job_makes_no_device_node_of_a_gpu_that_it_was_not_given(node: Node) -> None:
    """That is why its /dev is enough: there is no other way to a device than a node of it, and only root makes one."""
    make = "python3 -c \"import os; os.mknod('$folder/null2', 0o20666, os.makedev(1, 3))\" 2>&1"
    folders = "/tmp /dev/shm /run/gpufleet/home /dev"
    said = await said_by(node, f"for folder in {folders}; do {make} | grep -o PermissionError || echo made; done")
    assert said.split() == ["PermissionError"] * 4


async def test_where_memory_is_short_the_kernel_takes_jobs_before_their_keeper(node: Node) -> None:
    agent = await node.open()
    if score_of(agent.keeper_pid) >= 0:
        pytest.skip("no process here may lower its score: CAP_SYS_RESOURCE is taken from all")
    tell = "cat /proc/self/oom_score_adj; echo -1 2>/dev/null > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj"
    plain = node.shell(2, tell)
    for launch in (isolated(node, 1, tell), plain):
        end, out, err = await agent.run(launch)
        assert (end.status, err) == (ExitCode(code=0), b"")
        before, after = (int(each) for each in out.split())
        assert before == 0
        assert launch is plain or after == 0, "a user's job cannot put others before itself"


def test_a_keeper_lowers_its_score_and_what_it_begins_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = tmp_path / "oom_score_adj"
    monkeypatch.setattr(linux, "_OUT_OF_MEMORY_SCORE", score)
    linux.lower_out_of_memory_score()
    linux.give_up_out_of_memory_score()
    assert not score.exists(), "a machine without such a thing is left as it is"
    for before, lowered, given_up in ((0, -500, 0), (300, -500, 0), (-900, -900, 0)):
        score.write_text(f"{before}\n")
        linux.lower_out_of_memory_score()
        assert int(score.read_text()) == lowered
        linux.give_up_out_of_memory_score()
        assert int(score.read_text()) == given_up
    score.write_text("300\n")
    linux.give_up_out_of_memory_score()
    assert int(score.read_text()) == 300, "who started the keeper may have meant that"
