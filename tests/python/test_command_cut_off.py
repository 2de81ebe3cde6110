"""A command in a job whose connection ends before it does."""

from __future__ import annotations

import grpc.aio
import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.inside.executing import _written


class EndedCall:
    """A call that has ended without how the command did."""

    async def read(self) -> object:
        return grpc.aio.EOF


async def test_a_command_that_was_cut_off_says_what_to_do_and_nothing_of_requests() -> None:
    with pytest.raises(GpufleetError, match="the connection ended, and the command with it") as cut_off:
        await _written(EndedCall())
    assert cut_off.value.reason is Reason.OUTCOME_UNKNOWN
    assert "gpuctl nodes" in cut_off.value.next_step and "request id" not in cut_off.value.next_step
