"""How the end of an attempt is told to the scheduler that ran into a limit."""

from __future__ import annotations

import pytest

from gpufleet.jobs.runs import ExitCode, ExitSignal, StopCause
from node_agent.core.outcome import AttemptEnd, Offsets, Shortage
from node_agent.wire import reason_and_sentence_of

MB = 1_000_000
HUNGRY = Shortage(oom_kills=2, memory_bytes_peak=63 * MB, memory_bytes_max=64 * MB)


def test_an_end_out_of_memory_is_named_with_its_peak_and_its_limit() -> None:
    end = AttemptEnd(status=ExitSignal(signal=9), output_ends=Offsets(), shortage=HUNGRY)
    assert reason_and_sentence_of(end) == (
        "OUT_OF_MEMORY",
        "the command was ended by signal 9; "
        "the kernel ended 2 of its processes, out of memory (63MB at its peak, limit 64MB)",
    )


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (AttemptEnd(status=ExitCode(code=0), output_ends=Offsets(), shortage=HUNGRY), "EXITED"),
        (
            AttemptEnd(
                status=ExitSignal(signal=9), output_ends=Offsets(), shortage=HUNGRY, stop_cause=StopCause.CANCELLED
            ),
            "SIGNALLED",
        ),
        (AttemptEnd(status=ExitCode(code=137), output_ends=Offsets(), shortage=HUNGRY), "OUT_OF_MEMORY"),
        (AttemptEnd(status=ExitCode(code=2), output_ends=Offsets(), shortage=Shortage(forks_refused=1)), "EXITED"),
    ],
)
def test_only_what_failed_by_itself_ended_out_of_memory(end: AttemptEnd, reason: str) -> None:
    assert reason_and_sentence_of(end)[0] == reason


def test_memory_that_the_node_lacked_and_processes_that_were_refused_are_said_too() -> None:
    shortage = Shortage(oom_kills=1, forks_refused=1_200, processes_max=4_096)
    end = AttemptEnd(status=ExitCode(code=1), output_ends=Offsets(), shortage=shortage)
    assert reason_and_sentence_of(end)[1] == (
        "the command exited with code 1; the kernel ended 1 of its processes, out of memory (no limit of its own); "
        "it was refused 1,200 beyond its 4,096 processes and threads"
    )
