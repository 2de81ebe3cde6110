"""What /proc tells of processes, at awkward moments too."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from node_agent.keeper.processes import environment_of, look_at

LOOKS = 1_000


def test_a_process_between_two_programs_is_known_by_its_environment_all_the_same(tmp_path: Path) -> None:
    program = tmp_path / "again"
    program.write_text('#!/bin/sh\nexec "$0"\n')
    program.chmod(0o755)
    pid = os.posix_spawn(program, [str(program)], {"MARK": "here"})
    try:
        seen = [environment_of(pid).get(b"MARK") for _ in range(LOOKS)]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert seen == [b"here"] * LOOKS


def test_a_process_without_an_environment_has_none() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
    try:
        assert environment_of(pid) == {}
    finally:
        os.kill(pid, signal.SIGKILL)
        # A zombie has neither; nobody waits for it to get one.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        process = look_at(pid)
        environment = environment_of(pid)
        os.waitpid(pid, 0)
    assert process is not None and process.is_dead
    assert environment == {} == environment_of(pid)
