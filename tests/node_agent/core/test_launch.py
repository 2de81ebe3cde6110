"""What is wrong with a launch, as far as the launch alone tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.jobs.runs import FENCE_US_MIN, SIGNAL_MAX, UNLIMITED, JobId, RankKey
from node_agent.core.attempt import Limits
from node_agent.core.launch import (
    NOTE_CHARS_MAX,
    Launch,
    Process,
    RefusalReason,
    refusal_of_launch,
)
from node_agent.core.offsets import SPOOL_BYTES_MIN

NOW_US = 1_000_000_000_000
TEN_YEARS_US = 10 * 365 * 24 * 3600 * 1_000_000
LAUNCH = Launch(
    key=RankKey(JobId(1), 1, 0),
    process=Process(argv=("/bin/true",), env={"A": "1"}, cwd="/work"),
    heartbeat_sent_us=NOW_US,
)


def of_launch(**changes: Any) -> Launch:
    return replace(LAUNCH, **changes)


def of_process(**changes: Any) -> Launch:
    return replace(LAUNCH, process=replace(LAUNCH.process, **changes))


def of_limits(**changes: Any) -> Launch:
    return of_process(limits=Limits(**changes))


@pytest.mark.parametrize(
    "launch",
    [
        LAUNCH,
        of_process(env={}),
        of_process(output_file="/data/out.txt"),
        of_launch(note="x" * NOTE_CHARS_MAX),
        of_launch(spool_bytes=SPOOL_BYTES_MIN),
        of_limits(grace_us=0),
        of_limits(grace_us=TEN_YEARS_US),
        of_limits(time_limit_us=1),
        of_limits(time_limit_us=TEN_YEARS_US),
        of_limits(signal=1),
        of_limits(signal=SIGNAL_MAX),
        of_limits(signal_before_us=TEN_YEARS_US),
        of_limits(fence_us=FENCE_US_MIN),
        of_limits(fence_us=TEN_YEARS_US),
        of_process(rlimits={"NOFILE": (UNLIMITED, UNLIMITED)}),
    ],
)
def test_a_launch_at_the_edge_of_what_is_allowed_is_not_refused(launch: Launch) -> None:
    assert refusal_of_launch(launch, NOW_US) is None


@pytest.mark.parametrize(
    ("launch", "field"),
    [
        (of_process(argv=()), "argv "),
        (of_process(argv=("", "a")), "argv "),
        (of_process(argv=("/bin/echo", "a\0b")), "argv "),
        (of_process(env={"": "1"}), "env '':"),
        (of_process(env={"A=B": "1"}), "env 'A=B':"),
        (of_process(env={"A\0": "1"}), "env 'A\\x00':"),
        (of_process(env={"A": "1\0"}), "env 'A':"),
        (of_process(cwd=""), "cwd ''"),
        (of_process(cwd="work"), "cwd 'work'"),
        (of_process(cwd="/work\0"), "cwd '/work\\x00'"),
        (of_process(output_file="out.txt"), "output_file 'out.txt'"),
        (of_process(output_file="/data/\0"), "output_file '/data/\\x00'"),
        (of_launch(note="x" * (NOTE_CHARS_MAX + 1)), "note "),
        (of_launch(spool_bytes=SPOOL_BYTES_MIN - 1), "spool_bytes "),
        (of_launch(heartbeat_sent_us=NOW_US + 1), "heartbeat_sent_us "),
        (of_limits(grace_us=-1), "limits.grace_us -1 "),
        (of_limits(grace_us=TEN_YEARS_US + 1), "limits.grace_us "),
        (of_limits(time_limit_us=0), "limits.time_limit_us 0 "),
        (of_limits(time_limit_us=TEN_YEARS_US + 1), "limits.time_limit_us "),
        (of_limits(signal=0), "limits.signal 0 "),
        (of_limits(signal=SIGNAL_MAX + 1), "limits.signal "),
        (of_limits(signal_before_us=-1), "limits.signal_before_us -1 "),
        (of_limits(signal_before_us=TEN_YEARS_US + 1), "limits.signal_before_us "),
        (of_limits(fence_us=FENCE_US_MIN - 1), "limits.fence_us "),
        (of_limits(fence_us=TEN_YEARS_US + 1), "limits.fence_us "),
        (of_process(rlimits={"CPU": (1, 1)}), "rlimits 'CPU'"),
        (of_process(rlimits={"NOFILE": (UNLIMITED - 1, 1)}), "rlimits 'NOFILE'"),
    ],
)
def test_a_launch_beyond_what_is_allowed_is_refused_by_the_name_of_its_field(launch: Launch, field: str) -> None:
    refusal = refusal_of_launch(launch, NOW_US)
    assert refusal is not None
    assert refusal.reason is RefusalReason.BAD_REQUEST
    assert refusal.detail.startswith(field)


def test_a_launch_is_fenced_from_the_very_moment_of_its_deadline() -> None:
    """Five seconds are the margin of a fence of a minute."""
    launch = of_limits(fence_us=60_000_000)
    assert refusal_of_launch(launch, NOW_US + 54_999_999) is None
    refusal = refusal_of_launch(launch, NOW_US + 55_000_000)
    assert refusal is not None
    assert refusal.reason is RefusalReason.FENCED
