"""What `--input` of a submitted job names: whether there is such a job, whose it is, and what is waited for."""

from dataclasses import replace

from gpufleet.v1 import job_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ...blobs.store import BlobStore
from ...state.jobs import Job
from ...state.specs import Dependency, JobInput, JobSpec
from ...wire.validate import AFTER_MAX
from ..roles import caller
from ..sight import Sight
from .finding import JobsFound
from .input_sources import ITEMS_MAX, InputSources, has_ended

KnownInputs = dict[tuple[object, ...], tuple[tuple[JobInput, ...], tuple[Dependency, ...]]]
"""What inputs and dependencies came to, by what was asked: many specs of a request may name the same."""

SEE = "see what there is with: gpuctl files {}"


class InputCalls(JobsFound):
    """What Submit does about inputs."""

    blobs: BlobStore
    inputs: InputSources

    async def with_inputs(
        self, spec: JobSpec, asked: job_pb2.JobSpec | None, path: str, known: KnownInputs | None = None
    ) -> JobSpec:
        """The spec with each input by the id of the job that is meant, and with what has to be waited for.

        `asked` is the spec as it came; None where a job is submitted again. `known` is what was found of other specs of
        the request. Errors: INVALID_ARGUMENT, JOB_NOT_FOUND, ITEM_NOT_FOUND, OUTPUT_PRIVATE, and INPUT_UNUSABLE for
        what an ended job has not left.
        """
        key = (spec.after, tuple(each.SerializeToString() for each in asked.inputs) if asked is not None else ())
        if known is not None and key in known:
            inputs, after = known[key]
            return replace(spec, inputs=inputs, after=after)
        checked = await self._inputs_checked(spec, asked, path)
        if known is not None:
            known[key] = checked.inputs, checked.after
        return checked

    async def _inputs_checked(self, spec: JobSpec, asked: job_pb2.JobSpec | None, path: str) -> JobSpec:
        found: list[JobInput] = []
        after = {each.job: each for each in spec.after}
        for number, each in enumerate(spec.inputs):
            field = f"{path}.inputs[{number}]"
            index = asked.inputs[number].array_index if asked and asked.inputs[number].HasField("array_index") else None
            left = await self._left_by(each, index, field)
            count = 0 if left.items is None else left.items.indices.count
            if count > ITEMS_MAX:
                why = f"is an array of {count:,} items; {ITEMS_MAX:,} are the most that one input gives"
                raise invalid(f"{field}.job_id", why, next_step=f"name items, such as {left.id}.1")
            wanted = replace(each, job=left.id, item_count=count, is_of_admin=caller().is_admin)
            found.append(wanted)
            if not has_ended(left):
                after.setdefault(left.id, Dependency(job=left.id))
            else:
                await self._check_left(number, wanted, left, field)
        if len(after) > AFTER_MAX:
            raise invalid(f"{path}.inputs", f"wait for {len(after):,} jobs; at most {AFTER_MAX:,}")
        return replace(spec, inputs=tuple(found), after=tuple(after.values()))

    async def _left_by(self, wanted: JobInput, index: int | None, field: str) -> Job:
        left = await self.find(wanted.job)
        if index is not None:
            if left.items is None:
                raise invalid(f"{field}.array_index", f"is {index}, and job {left.id} is no array")
            position = left.items.indices.position(index)
            if position is None:
                step = f"see which it has with: gpuctl job {left.id}"
                raise GpufleetError(Reason.ITEM_NOT_FOUND, f"array {left.id} has no item {index}", next_step=step)
            left = await self.find(left.id + 1 + position)
        Sight.of_caller(self.facts).check_reads(left.id, left.user)
        if not left.spec.results:
            why = f"is {left.id}, which was submitted without --download and leaves no files"
            raise invalid(f"{field}.job_id", why, next_step="name a job that leaves some")
        return left

    async def _check_left(self, number: int, wanted: JobInput, left: Job, field: str) -> None:
        """Refuse what an ended job has not left, as far as all of it is stored."""
        try:
            async for source in self.inputs.of(number, wanted, left):
                if await self.inputs.chooses_any(source, wanted.pattern):
                    return
        except GpufleetError as problem:
            if problem.reason is not Reason.CONFLICT:
                raise
            return  # something is still coming: the node sees what it is
        why = f"job {left.id} left no file that {wanted.pattern!r} chooses"
        raise invalid(f"{field}.pattern", why, reason=Reason.INPUT_UNUSABLE, next_step=SEE.format(left.id))
