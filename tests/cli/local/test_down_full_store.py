"""`down` where the scheduler's store is full: it ends soon, says so plainly, and the next `up` knows what it did."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cli.local.stopping import END_JOBS_S_MAX
from tests.cli.local.test_up import gpuctl, start_job_that_waits_for, wait_until
from tests.e2e.disks import small_disk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DISK_BYTES = 24_000_000


def submits_are_refused() -> bool:
    large = ("--env", f"X={'x' * 50_000}", "--connection-timeout", "2s")
    return gpuctl("submit", "--hold", *large, "--", "true").returncode != 0


def test_down_with_a_full_store_ends_what_runs_soon_and_says_what_is_not_stored(tmp_path: Path) -> None:
    with small_disk(DISK_BYTES) as disk:
        data = disk.path / "fleet"
        ports = ("--scheduler-port", "0", "--gateway-port", "0")
        try:
            up = gpuctl("up", "--data", str(data), *ports, "--virtual-gpus", "1", "--detach")
            assert up.returncode == 0, up.stderr
            job_id = start_job_that_waits_for(tmp_path / "never")
            disk.fill()
            wait_until(submits_are_refused, "the store takes still more")
            began = time.monotonic()
            down = gpuctl("down", "--data", str(data), "--yes")
            took_s = time.monotonic() - began
            assert down.returncode == 0
            assert "Traceback" not in down.stderr and "internal" not in down.stderr.lower()
            assert "the jobs are told to end; that is not stored yet" in down.stdout + down.stderr
            assert took_s < END_JOBS_S_MAX, "it does not wait for what a full store never learns"
            disk.make_room()
            up = gpuctl("up", "--data", str(data), *ports, "--virtual-gpus", "1", "--detach")
            assert up.returncode == 0, up.stderr
            wait_until(lambda: "CANCELLED" in gpuctl("job", job_id, "-o", "json").stdout, "the end is not known")
        finally:
            gpuctl("down", "--data", str(data), "--yes")
