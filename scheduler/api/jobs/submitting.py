"""The Scheduler service: Submit. Check, decide, store, answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.spans import Telemetry
from gpufleet.telemetry.traceparent import from_metadata, is_traceparent, new_traceparent

from ...blobs.store import BlobStore
from ...policy.explain import foretell
from ...policy.order.place import position
from ...state.events import JobsSubmitted, WantedJob
from ...state.ids import JobId
from ...state.indices import Indices
from ...state.jobs import Finished, Items, Job, index_of, items_alike
from ...state.replies import Submitted
from ...state.specs import Band, JobSpec, Outcome
from ...wire.alike_specs import CheckedSpec, KnownSpecs
from ...wire.convert_jobs import job_proto, state_of
from ...wire.digests import digest_of
from ...wire.gpu_choice import apply_gpu
from ...wire.groups.convert import show_group
from ...wire.input_files import with_shared_root
from ...wire.validate import check_request_id, wanted_jobs
from ..answers import reply_of
from ..roles import caller
from .arrays import failed_indices, show_items
from .bands import band_within, band_word, check_band, default_band
from .files import missing_files, not_uploaded, only_shared
from .folders import check_folders
from .inputs import InputCalls, KnownInputs
from .secrets import check_secrets

ELSEWHERE = "--download chooses files of $GPUFLEET_FILES alone, and the working directory is another one (--cwd)"
"""What is said of a job that is to leave files and does not begin where they would lie."""


class SubmitCalls(InputCalls):
    """How jobs come. Each public method is one RPC."""

    telemetry: Telemetry
    known_specs: KnownSpecs
    blobs: BlobStore

    async def Submit(self, request: scheduler_pb2.SubmitRequest, context: Any) -> scheduler_pb2.SubmitResponse:
        """Check, decide, store, answer."""
        apply_gpu(request)
        parent = from_metadata(context.invocation_metadata())
        if request.specs and is_traceparent(request.specs[0].trace_context):
            parent = request.specs[0].trace_context
        with self.telemetry.span("submit", parent=parent, jobs=request.count or len(request.specs)) as span:
            for spec in request.specs:
                spec.trace_context = span.traceparent or new_traceparent()
            submitted, notes = await self._submitted(request, span.traceparent)
            reply = await reply_of(self.engine.request(submitted))
        assert isinstance(reply, Submitted)
        if request.dry_run:
            assert reply.job is not None
            foretold = self._job_foretold(reply.job)
            return scheduler_pb2.SubmitResponse(count=reply.count, job=foretold, notes=[*notes, *reply.notes])
        job = self.engine.view.durable.jobs.get(reply.first) or reply.job
        if job is None:
            job = await self.find(reply.first)
        shown = self.job_now(job)
        return scheduler_pb2.SubmitResponse(
            first_job_id=reply.first, count=reply.count, job=shown, notes=[*notes, *reply.notes]
        )

    async def _submitted(
        self, request: scheduler_pb2.SubmitRequest, trace: str
    ) -> tuple[JobsSubmitted, tuple[str, ...]]:
        """What is asked for, and what is worth knowing of it."""
        if request.rerun_failed_job_id and not (request.specs or request.count):
            return await self._submitted_again(request, trace)
        jobs = wanted_jobs(request, self.known_specs)
        if (caller().user, request.request_id) not in self.engine.view.durable.requests:
            known: KnownInputs = {}
            for number, (job, asked) in enumerate(zip(jobs, request.specs, strict=True)):
                if job.spec.inputs:
                    spec = await self.with_inputs(job.spec, asked, f"specs[{number}]", known)
                    jobs[number] = replace(job, spec=spec)
        self._check_secrets([job.spec for job in jobs], request)
        specs, notes = await self._with_files([job.spec for job in jobs], request)
        if any(spec.results and spec.cwd.startswith("/") and spec.container is None for spec in specs):
            notes = (*notes, ELSEWHERE)
        jobs = [job if job.spec is spec else replace(job, spec=spec) for job, spec in zip(jobs, specs, strict=True)]
        named = {each.job for job in jobs for each in job.spec.after}
        ended = {job_id: await self._outcome(job_id) for job_id in named}
        submitted = JobsSubmitted(
            at=self.engine.now(),
            user=caller().user,
            jobs=tuple(
                WantedJob(
                    spec=job.spec,
                    band=band,
                    is_held=job.is_held,
                    group=job.group,
                    band_may_fall=not spec.band,
                )
                for job, band, spec in zip(jobs, self._bands_of(request, jobs), request.specs, strict=True)
            ),
            count=request.count or 1,
            request_id=request.request_id,
            request_digest=digest_of(request) if request.request_id else "",
            is_dry_run=request.dry_run,
            ended=ended,
            items=jobs[0].items,
        )
        return submitted, notes

    def _check_secrets(
        self, specs: Sequence[JobSpec], request: scheduler_pb2.SubmitRequest, field: str = "specs[{}].secrets"
    ) -> None:
        """Errors: SECRET_NOT_FOUND, but for a request that was carried out before."""
        if (caller().user, request.request_id) not in self.engine.view.durable.requests:
            check_secrets(self.engine.view.durable, caller().user, specs, field)

    async def _with_files(
        self, specs: Sequence[JobSpec], request: scheduler_pb2.SubmitRequest, field: str = "specs[{}].files[{}]"
    ) -> tuple[Sequence[JobSpec], tuple[str, ...]]:
        """Keep the files and folders that the jobs name; files that lie in a shared folder alone bind a job to nodes
        that see it. A dry run notes those that are not there.

        Errors: FILE_NOT_UPLOADED and those of `check_folders`, but for a request that was carried out before.
        """
        if not any(spec.files or spec.folder for spec in specs):
            return specs, ()
        missing = await self.blobs.on_thread(missing_files, self.blobs, caller().user, specs)
        if (caller().user, request.request_id) in self.engine.view.durable.requests:
            return specs, ()
        roots = {node.shared_root for node in self.engine.view.durable.nodes.values() if node.shared_root}
        shared, missing = only_shared(missing, roots)
        if missing and not request.dry_run:
            raise not_uploaded(missing, field)
        notes = (f"{len(missing):,} of its files are not uploaded yet",) if missing else ()
        where = field.partition(".")[0] + ".folder" if "." in field else field
        try:
            await self.blobs.on_thread(check_folders, self.blobs, caller().user, specs, where)
        except GpufleetError as problem:
            if not request.dry_run or problem.reason is not Reason.FILE_NOT_UPLOADED:
                raise
            notes = (*notes, "its folder is not uploaded yet")
        bound = [[each.file for each in shared if each.spec == number] for number in range(len(specs))]
        return [with_shared_root(spec, files) for spec, files in zip(specs, bound, strict=True)], notes

    def _bands_of(self, request: scheduler_pb2.SubmitRequest, jobs: list[CheckedSpec]) -> tuple[Band, ...]:
        """The bands that are asked for. Errors: BAND_REFUSED, but for a request that was carried out before."""
        rights, default = self.engine.view.limits.bands, default_band(self.engine.view.limits.bands)
        bands = tuple(job.band if spec.band else default for spec, job in zip(request.specs, jobs, strict=True))
        if (caller().user, request.request_id) not in self.engine.view.durable.requests:
            for number, band in enumerate(bands):
                check_band(rights, band, f"specs[{number}].band")
        return bands

    async def _submitted_again(
        self, request: scheduler_pb2.SubmitRequest, trace: str
    ) -> tuple[JobsSubmitted, tuple[str, ...]]:
        """What failed of a job, as it was asked for, but for what it was to wait for. Errors: NOTHING_FAILED."""
        check_request_id(request.request_id)
        job = await self.find(request.rerun_failed_job_id)
        self.check_owner(job)
        items: Items | None = None
        if job.items is not None:
            numbers = await failed_indices(self.engine, job)
            if not numbers:
                raise GpufleetError(Reason.NOTHING_FAILED, f"no item of array {job.id} has failed")
            items = replace(job.items, indices=Indices.of_numbers(numbers), ended=None)
        elif not isinstance(job.state, Finished) or job.state.outcome not in (Outcome.FAILED, Outcome.TIMED_OUT):
            raise GpufleetError(Reason.NOTHING_FAILED, f"job {job.id} has not failed")
        elif job.array is not None:
            array = await self.find(job.array)
            assert array.items is not None
            items = replace(array.items, indices=Indices.of_numbers([index_of(array, job)]), ended=None)
        spec = replace(job.spec, after=(), begin_at=None, trace_context=trace or new_traceparent())
        if spec.inputs:
            spec = await self.with_inputs(spec, None, "rerun_failed_job_id")
        self._check_secrets([spec], request, "rerun_failed_job_id: secrets")
        (spec,), missing = await self._with_files([spec], request, "rerun_failed_job_id")
        band = band_within(self.engine.view.limits.bands, job.band)
        notes = (
            (f"job {job.id} is in band {band_word(job.band)}; you have {band_word(band)}",) if band != job.band else ()
        )
        submitted = JobsSubmitted(
            at=self.engine.now(),
            user=caller().user,
            jobs=(WantedJob(spec=spec, band=band, group=self._group_again(job), band_may_fall=True),),
            request_id=request.request_id,
            request_digest=digest_of(request) if request.request_id else "",
            is_dry_run=request.dry_run,
            items=items,
        )
        return submitted, (*notes, *missing)

    def _group_again(self, job: Job) -> str:
        """The group of a job that is submitted again, where the caller is in it; else empty: their first."""
        group = self.engine.view.durable.groups.live(job.group)
        return "" if group is None or not group.has(caller().user) else group.name

    async def _outcome(self, job_id: JobId) -> Outcome | None:
        """How a job ended; None for one that is live, or that there is not."""
        if job_id in self.engine.view.durable.jobs:
            return None
        try:
            job = await self.find(job_id)
        except GpufleetError:
            return None
        return job.state.outcome if isinstance(job.state, Finished) else None

    def _job_foretold(self, job: Job) -> job_pb2.Job:
        """A job of a dry run, as it would be: it has no id, and the reason says what would happen."""
        waits = job if job.items is None else items_alike(job)
        message = job_proto(job, position=position(self.engine.view, waits, self.engine.now()))
        show_items(message, self.engine.view.durable, job)
        show_group(message, self.engine.view.durable, job)
        message.state = state_of(waits)
        message.ClearField("id")
        foretold = foretell(self.engine.view, job, self.engine.now())
        message.wait_reason.reason, message.wait_reason.sentence = foretold.reason, foretold.sentence
        return message
