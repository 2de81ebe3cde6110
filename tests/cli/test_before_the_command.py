"""Options of the connection that stand before the command, and time-outs that are plain numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from cli.following_options import Following
from cli.options import Connection
from gpufleet.errors import GpufleetError
from gpufleet.fleet.settings import resolve
from tests.cli.conftest import run_here
from tests.cli.fake_scheduler import FakeScheduler, job


@pytest.mark.parametrize(
    "line",
    ["queue", "job 1", "nodes", "submit -- true", "token list", "stats 1", "wait --max-wait-time 5 1", "cancel 1"],
)
def test_the_scheduler_may_be_named_before_the_command(line: str, fake: FakeScheduler) -> None:
    fake.jobs = {1: job(1)}
    name, *rest = line.split()
    if name == "wait":
        fake.jobs[1].state = job_pb2.JOB_STATE_SUCCEEDED
    asked = len(fake.calls)
    done = run_here("--scheduler", fake.address, name, *rest)
    assert done.code == 0, done.err
    assert len(fake.calls) > asked


def test_what_stands_behind_the_command_wins(fake: FakeScheduler) -> None:
    assert run_here("--scheduler", "127.0.0.1:1", "queue", "--scheduler", fake.address).code == 0
    refused = run_here("--scheduler", fake.address, "queue", "--scheduler", "127.0.0.1:1")
    assert refused.code == 5 and "127.0.0.1:1 (--scheduler)" in refused.err


def test_a_token_file_and_a_context_work_before_the_command(
    fake: FakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("gf_" + "x" * 43 + "\n")
    token.chmod(0o644)
    monkeypatch.setenv("GPUCTL_SCHEDULER", fake.address)
    assert "other accounts can read" in run_here("--token-file", str(token), "queue").err
    token.chmod(0o600)
    assert run_here("--token-file", str(token), "queue").code == 0
    assert 'there is no context "nowhere"' in run_here("--context", "nowhere", "queue").err
    assert (
        run_here("config", "context", "add", "lab", "--scheduler", fake.address, "--token-file", str(token)).code == 0
    )
    monkeypatch.delenv("GPUCTL_SCHEDULER")
    assert run_here("--context", "lab", "queue").code == 0


def test_exit_codes_are_those_of_the_command_and_not_of_a_value_that_is_called_like_one() -> None:
    assert run_here("--scheduler", "127.0.0.1:1", "run", "--", "true").code == 125
    assert run_here("--context", "run", "queue").code == 2


def test_a_command_that_asks_no_scheduler_takes_none() -> None:
    refused = run_here("--scheduler", "x", "config", "check", "y")
    assert refused.code == 2 and "gpuctl config check takes no --scheduler" in refused.err


def test_programs_get_it_as_an_option_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: became.append(command))
    run_here("--scheduler", "head", "--token-file", "t", "agent", "--virtual-gpus", "2")
    assert became[0][4:] == ["--scheduler", "head", "--token-file", "t", "--virtual-gpus", "2"]


def test_a_plain_number_is_seconds_where_a_wait_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve(Following(connection_timeout="7", session_timeout="90", max_wait_time="1.5"))
    assert settings.connection_timeout_s == 7
    assert (settings.time_outs.session_s, settings.time_outs.max_wait_s) == (90, 1.5)
    monkeypatch.setenv("GPUCTL_CONNECTION_TIMEOUT", "8")
    Path("gpuctl.toml").write_text("max_wait_time = 60\nsession_timeout = '2h'\n")
    settings = resolve(Connection())
    assert (settings.connection_timeout_s, settings.time_outs.max_wait_s, settings.time_outs.session_s) == (8, 60, 7200)


@pytest.mark.parametrize("text", ["-1", "soon", "", "1y"])
def test_what_is_no_time_is_refused_as_before(text: str) -> None:
    with pytest.raises(GpufleetError, match="--connection-timeout"):
        resolve(Connection(connection_timeout=text))
