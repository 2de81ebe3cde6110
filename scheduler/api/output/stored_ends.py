"""How far the output of a job's attempts is stored, for those who read its record."""

from collections.abc import Iterator
from contextlib import suppress

from gpufleet.v1 import job_pb2

from ...output_hub import OutputHub
from ...outputs.errors import OutputStoreUnavailable
from ...state.attempts import OutputStream
from ...state.ids import JobId, RankKey


def written_ends(job: job_pb2.Job) -> Iterator[tuple[job_pb2.Attempt, job_pb2.OutputEnd]]:
    """The ends of every attempt of which all output was stored when it ended."""
    for attempt in job.attempts:
        if attempt.HasField("end_time") and attempt.output_is_complete:
            for end in attempt.output_ends:
                yield attempt, end


async def tell_stored_ends(job: job_pb2.Job, outputs: OutputHub) -> None:
    """Fill in how much of an ended attempt's output is missing, and, where nobody told its end, how far it is stored.

    The latter is where its node was lost, or it was given up. Both are left out while the store cannot be read.
    """
    ended = [attempt for attempt in job.attempts if attempt.HasField("end_time")]
    silent = [each for each in ended if not each.output_is_complete and not each.output_ends]
    if not silent and not any(end.end_offset for _, end in written_ends(job)):
        return
    with suppress(OutputStoreUnavailable):
        found = await outputs.on_thread(lambda: outputs.store.ends_found(JobId(job.id)))
        for attempt, end in written_ends(job):
            key = RankKey(JobId(job.id), attempt.number, end.rank, attempt.lineage)
            stored = found.get((key, OutputStream(int(end.stream))), 0)
            attempt.missing_output_bytes += max(end.end_offset - stored, 0)
        for attempt in silent:
            for (key, stream), end_offset in sorted(found.items()):
                if (key.attempt, key.lineage) == (attempt.number, attempt.lineage):
                    of_stream = job_pb2.Stream.ValueType(stream)
                    attempt.output_ends.add(rank=key.rank, stream=of_stream, end_offset=end_offset)
