"""Where stdin, stdout and stderr lead is the caller's: nowhere, where they are closed, or to a disk that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from cli.submitting import first_moments
from tests.cli.fake_scheduler import FakeScheduler, Piece, ended

RUN_S_MAX = 60.0
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full, which Linux has")


@pytest.fixture(autouse=True)
def _job(fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_SCHEDULER", fake.address)

    def finish() -> None:
        fake.jobs[1] = ended(code=3)

    fake.output[1] = [Piece(b"out\n"), Piece(b"err\n", job_pb2.STREAM_STDERR), finish]


def in_a_shell(words: str, *, first_s_max: float = first_moments.FIRST_S_MAX) -> subprocess.CompletedProcess[bytes]:
    """What `gpuctl` with these words does, redirections among them."""
    program = (
        f"import gpufleet.cli.submitting.first_moments as first; first.FIRST_S_MAX = {first_s_max}; "
        "from gpufleet.cli.__main__ import main; main()"
    )
    line = f'gpuctl() {{ "$PYTHON" -P -c "$PROGRAM" "$@"; }}; gpuctl {words}'
    variables = f"PYTHON={sys.executable!r} PROGRAM={program!r}"
    return subprocess.run(
        ["sh", "-c", f"{variables}; {line}"], stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_S_MAX
    )


@pytest.mark.parametrize("first_s_max", [40.0, 0.01])
@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [
        ("<&-", b"out\n", b"err\ngpuctl: job 1 failed with exit code 3 (EXITED)\n"),
        (">&-", b"", b"err\ngpuctl: job 1 failed with exit code 3 (EXITED)\n"),
        ("2>&-", b"out\n", b""),
        ("<&- >&- 2>&-", b"", b""),
    ],
)
def test_a_stream_that_is_closed_leads_nowhere_and_the_jobs_code_is_ours(
    closed: str, out: bytes, err: bytes, first_s_max: float
) -> None:
    done = in_a_shell(f"run -- train {closed}", first_s_max=first_s_max)
    assert (done.returncode, done.stdout, done.stderr) == (3, out, err)


@pytest.mark.parametrize(
    ("stream", "redirected", "shown"),
    [
        (job_pb2.STREAM_STDERR, "", "|no end\ngpuctl: job 1 failed with exit code 3 (EXITED)\n"),
        (job_pb2.STREAM_STDOUT, "", "no end|gpuctl: job 1 failed with exit code 3 (EXITED)\n"),
        (job_pb2.STREAM_STDOUT, "2>&1", "no end\ngpuctl: job 1 failed with exit code 3 (EXITED)\n|"),
    ],
)
def test_our_own_line_begins_a_line_where_the_jobs_last_one_has_no_end(
    fake: FakeScheduler, stream: job_pb2.Stream.ValueType, redirected: str, shown: str
) -> None:
    fake.output[1][:2] = [Piece(b"no end", stream)]
    done = in_a_shell(f"run -- train {redirected}")
    assert (done.returncode, f"{done.stdout.decode()}|{done.stderr.decode()}") == (3, shown)


@needs_full
def test_a_full_disk_fails_run_with_a_code_that_is_not_the_jobs_and_starts_no_other() -> None:
    done = in_a_shell("run -- train >/dev/full")
    assert done.returncode == 125
    assert done.stderr.decode().splitlines() == [
        "gpuctl: left; job 1 goes on. Follow it with: gpuctl logs -f 1",
        "gpuctl: the output cannot be written: No space left on device",
        "Make room where it goes, and follow the job as said above",
    ]


@needs_full
@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        ("submit -- train", "see what was submitted with: gpuctl queue -a"),
        ("queue", "give the command again"),
    ],
)
def test_a_full_disk_fails_a_command_and_says_what_to_do(words: str, next_step: str) -> None:
    done = in_a_shell(f"{words} >/dev/full")
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"gpuctl: the output cannot be written: No space left on device\nMake room where it goes, and {next_step}\n"
    )
