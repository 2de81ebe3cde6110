"""Whose a process is, told from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpufleet.devices.device import DeviceProcess, DeviceSample, Owner
from gpufleet.devices.process_tree import LiveAttempt, mark_owners, owner_of

NOBODY = 2**22 + 1
"""Above the kernel's highest pid."""


@contextmanager
def family(*, forks: str, environment: dict[str, str] | None = None) -> Iterator[tuple[int, int]]:
    """A leader in a session of its own and one descendant: their pids. `forks` runs in the leader."""
    code = f"""
import os, sys, time
def tell_and_wait():
    print(os.getpid(), flush=True)
    sys.stdin.read()
{textwrap.dedent(forks)}
"""
    leader = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    assert leader.stdin and leader.stdout
    try:
        yield leader.pid, int(leader.stdout.readline())
    finally:
        leader.stdin.close()
        leader.wait()
        # The descendants hold the other end until they have gone.
        leader.stdout.read()
        leader.stdout.close()


CHILD = """
if os.fork() == 0:
    tell_and_wait()
else:
    os.wait()
"""
ORPHAN_OF_THE_SESSION = """
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.001)
        tell_and_wait()
    os._exit(0)
os.wait()
sys.stdin.read()
"""
DAEMON = ORPHAN_OF_THE_SESSION.replace("    parent =", "    os.setsid()\n    parent =")


def attempt(leader_pid: int, **environment: str) -> LiveAttempt:
    return LiveAttempt(name="12/1", leader_pid=leader_pid, environment=environment)


def test_the_leader_and_its_children_are_ours() -> None:
    with family(forks=CHILD) as (leader, child):
        assert owner_of(leader, [attempt(leader)]) == (Owner.OURS, "12/1")
        assert owner_of(child, [attempt(leader)]) == (Owner.OURS, "12/1")


def test_a_child_in_a_session_of_its_own_is_ours_by_its_parents() -> None:
    with family(forks=CHILD.replace("    tell", "    os.setsid(); tell", 1)) as (leader, child):
        assert os.getsid(child) != os.getsid(leader)
        assert owner_of(child, [attempt(leader)]) == (Owner.OURS, "12/1")


def test_an_orphan_is_ours_by_its_session() -> None:
    with family(forks=ORPHAN_OF_THE_SESSION) as (leader, orphan):
        assert owner_of(orphan, [attempt(leader)]) == (Owner.OURS, "12/1")


def test_a_daemon_that_left_session_and_parents_is_ours_by_its_environment_and_else_foreign() -> None:
    marks = {"GPUFLEET_JOB_ID": "12", "GPUFLEET_ATTEMPT": "1"}
    with family(forks=DAEMON, environment=marks) as (leader, daemon):
        assert owner_of(daemon, [attempt(leader, **marks)]) == (Owner.OURS, "12/1")
        assert owner_of(daemon, [attempt(leader)]) == (Owner.FOREIGN, None)
        # What an earlier attempt of the job left behind is nobody's.
        assert owner_of(daemon, [attempt(leader, **marks | {"GPUFLEET_ATTEMPT": "2"})]) == (Owner.FOREIGN, None)


def test_a_process_that_nobody_here_started_is_foreign() -> None:
    with family(forks=CHILD) as (_, child):
        assert owner_of(child, [attempt(NOBODY, GPUFLEET_JOB_ID="12")]) == (Owner.FOREIGN, None)
        assert owner_of(child, []) == (Owner.FOREIGN, None)


def test_a_process_that_is_not_to_be_seen_is_unknown() -> None:
    assert owner_of(NOBODY, [attempt(1)]) == (Owner.UNKNOWN, None)


def test_a_command_name_with_brackets_and_spaces_confuses_nobody(tmp_path: Path) -> None:
    (tmp_path / "50").mkdir()
    (tmp_path / "50" / "stat").write_text("50 (a) R 1 1 1 (b) S 40 40 40 0 -1\n")
    (tmp_path / "40").mkdir()
    (tmp_path / "40" / "stat").write_text("40 (sh) S 1 40 40 0 -1\n")
    assert owner_of(50, [attempt(40)], proc=tmp_path) == (Owner.OURS, "12/1")


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    for pid, parent in ((50, 51), (51, 50)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {parent} 2 2 0\n")
    assert owner_of(50, [attempt(40)], proc=tmp_path) == (Owner.FOREIGN, None)


def test_every_process_of_every_sample_is_marked_and_an_unknown_list_stays_unknown() -> None:
    samples = (
        DeviceSample(uuid="a", processes=(DeviceProcess(pid=os.getpid()), DeviceProcess(pid=NOBODY))),
        DeviceSample(uuid="b", processes=(DeviceProcess(pid=os.getpid(), is_compute=False),)),
        DeviceSample(uuid="c", processes=None),
    )
    first, second, third = mark_owners(samples, [])
    assert first.processes and second.processes
    assert [process.owner for process in first.processes] == [Owner.FOREIGN, Owner.UNKNOWN]
    assert [process.is_foreign for process in first.processes] == [True, False]
    # It draws on the device and computes nothing there: it makes nobody wait.
    assert not second.processes[0].is_foreign
    assert third.processes is None
