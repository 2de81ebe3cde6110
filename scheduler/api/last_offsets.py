"""How far the output of an attempt is stored whose end nobody told: its node was lost, or it was given up."""

from collections.abc import Iterator
from contextlib import suppress

from gpufleet.v1 import job_pb2

from ..output_hub import OutputHub
from ..outputs.errors import OutputStoreUnavailable
from ..ports import OutputStore
from ..state.ids import JobId


async def tell_last_offsets(job: job_pb2.Job, outputs: OutputHub) -> None:
    """Fill in where the stored output of such attempts ends; left out while the store cannot be read."""
    silent = [
        attempt
        for attempt in job.attempts
        if attempt.HasField("end_time") and not attempt.output_is_complete and not attempt.output_ends
    ]
    if not silent:
        return
    with suppress(OutputStoreUnavailable):
        ends = await outputs.on_thread(lambda: list(_stored_ends(outputs.store, JobId(job.id))))
        for attempt in silent:
            attempt.output_ends.extend(end for number, end in ends if number == attempt.number)


def _stored_ends(store: OutputStore, job: JobId) -> Iterator[tuple[int, job_pb2.OutputEnd]]:
    for key, stream in store.streams(job):
        end = job_pb2.OutputEnd(
            rank=key.rank, stream=job_pb2.Stream.ValueType(stream), end_offset=store.end(key, stream)
        )
        yield key.attempt, end
