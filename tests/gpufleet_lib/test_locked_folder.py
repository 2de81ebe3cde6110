"""The lock of a data folder: one process has it, and nobody once that one is dead."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.locked_folder import lock_folder

HOLDS = """
import sys
from pathlib import Path
from gpufleet.host.locked_folder import lock_folder
lock_folder(Path(sys.argv[1]), "scheduler")
print("held", flush=True)
sys.stdin.read()
"""


def test_one_has_the_folder_and_who_is_killed_has_it_no_more(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-P", "-c", HOLDS, str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            with pytest.raises(GpufleetError, match=f"another scheduler with pid {holder.pid} already uses") as refused:
                lock_folder(data, "scheduler")
            assert refused.value.reason is Reason.ALREADY_RUNNING
            assert refused.value.metadata["pid"] == str(holder.pid)
        finally:
            holder.kill()
            holder.wait()
    os.close(lock_folder(data, "scheduler"))
    os.close(lock_folder(data, "scheduler"))


def test_a_file_system_without_locks_is_called_that_and_not_a_second_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(GpufleetError, match=r"cannot be locked: No locks available") as refused:
        lock_folder(tmp_path, "scheduler")
    assert refused.value.reason is Reason.FILE_NOT_FOUND
