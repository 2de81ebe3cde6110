"""Simulated people: they submit, ask again when nobody answers, change their minds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from scheduler.policy.explain import explain
from scheduler.state.events import (
    BandRequested,
    CancelRequested,
    DrainRequested,
    Event,
    ForgetRequested,
    HoldRequested,
    JobsSubmitted,
    RequeueRequested,
    SignalRequested,
    WantedJob,
)
from scheduler.state.gpu_choice import NEEDS_GPU_EXIT_CODE
from scheduler.state.ids import JobId, NodeName, UserName
from scheduler.state.indices import Indices
from scheduler.state.jobs import Items, Queued
from scheduler.state.replies import Refused, Reply, Submitted
from scheduler.state.specs import Band, Dependency, EndWanted, GpuChoice, GpuMode, JobSpec, Resources
from scheduler.state.units import SECOND, Instant, Span, seconds
from tests.simulation.machine import NEVER, Plan
from tests.simulation.scheduler import LIMITS
from tests.simulation.world import Broken, World

ANSWER_SECONDS_MAX = 8.0
USERS = ("alice", "bob")

RUN_SECONDS_MAX = 160.0
"""No program runs longer by itself."""

AROUND_SECONDS_MAX = 15.0
"""What a run takes besides: it is placed and launched, is stopped with its grace, dies, lingers, its end is told."""

FLOOD_MAX = 60
"""Jobs of a flood at most."""

GANG_GPUS_MAX = 5
"""In some runs a user may hold no more at once, and a job that asks for more would wait for ever."""


@dataclass(slots=True)
class Submission:
    """One request of one person, with its request_id, until it is answered."""

    request_id: str
    user: UserName
    spec: JobSpec
    band: Band
    is_held: bool
    count: int
    items: Items | None = None
    begins_in: Span | None = None
    job: int = 0
    refusal: str = ""
    tries: int = 0
    is_lost: bool = False
    """Whether the store that was put back lacks what was acknowledged."""

    @property
    def size(self) -> int:
        """Ids that it makes: of an array also those of its items."""
        return self.count + (0 if self.items is None else self.items.indices.count)

    @property
    def run_seconds(self) -> float:
        """How long one job of it takes at most, if it runs as often as its retries let it, and once more.

        Once more: a person, a preemption or what went wrong before may have cut a run short. What prefers GPUs may run
        without them first.
        """
        waits = LIMITS.kept_wait / SECOND if self.spec.keep else 0.0
        return (self.spec.retries + 2 + (self.spec.gpu_choice is not None)) * (
            Plan.of(self.spec.argv).seconds + AROUND_SECONDS_MAX + waits
        )


class Users:
    """Everybody who uses the fleet."""

    def __init__(self, world: World, jobs: int, submit_seconds: float) -> None:
        self._world = world
        self._rng, self._modes = world.rng("users"), world.rng("gpu modes")
        self._rng_of_losses = world.rng("users whose jobs are lost")
        self._rng_of_results = world.rng("users who download")
        self._downloads = self._rng_of_results.choice((0.0, 0.5))
        self._rng_of_kept = world.rng("users who keep files for the next attempt")
        self._keeps = self._rng_of_kept.choice((0.0, 0.5))
        """How often a job is to leave something: in one run of two."""
        self._histories = 1
        """A store that is put back begins another one."""
        self._numbers: dict[int, Submission] = {}
        self.submissions: list[Submission] = []
        left = jobs
        while left > 0:
            count = min(left, self._rng.choice((1, 1, 1, 1, 3)))
            submission = self._invent(len(self.submissions), count)
            if count == 1 and self._rng.random() < 0.2:
                submission.items = self._invent_items()
            left -= submission.size
            self.submissions.append(submission)
            world.after(self._rng.uniform(0.5, submit_seconds), self._submit, submission)
        floods = world.rng("floods")
        for _ in range(floods.choice((0, 1, 2)) if jobs else 0):
            flood = self._invent_flood(len(self.submissions), floods)
            self.submissions.append(flood)
            world.after(floods.uniform(0.5, submit_seconds), self._submit, flood)

    def _invent_flood(self, number: int, rng: Random) -> Submission:
        """Many jobs that are alike, short by their history or by their limit: they come into backlogs.

        One that is to end at its limit may take its whole grace, so that those behind it wait for too long.
        """
        plan = Plan(
            seconds=rng.choice((0.02, 0.3, 0.3, 8.0)),
            code=0,
            lines=1,
            term_seconds=rng.choice((0.0, NEVER)),
            dies_seconds=rng.choice((0.0, 0.05)),
            lingers_seconds=0.0,
            trouble="-",
        )
        spec = JobSpec(
            argv=plan.argv(),
            name=rng.choice(("train", "flood")),
            cwd="/",
            resources=Resources(gpus=rng.choice((0, 1, 1)), min_memory_bytes=0),
            time_limit=Span(1 * SECOND) if plan.seconds > 1 else rng.choice((None, Span(1 * SECOND))),
            grace=Span(5 * SECOND),
            is_preemptible=rng.random() < 0.3,
        )
        count = rng.randint(20, FLOOD_MAX)
        is_array = rng.random() < 0.5
        return Submission(
            request_id=f"request-{number}",
            user=UserName(rng.choice(USERS)),
            spec=spec,
            band=rng.choice((Band.LOW, Band.NORMAL)),
            is_held=False,
            count=1 if is_array else count,
            items=Items(indices=Indices.of_ranges([range(count)])) if is_array else None,
        )

    def _invent(self, number: int, count: int) -> Submission:
        rng = self._rng
        gpus = rng.choice((0, 0, 1, 1, 1, 2, 3))
        share_milli = rng.choice((0, 0, 0, 250, 500, 600)) if gpus else 0
        node_count = 0 if share_milli or count > 1 else rng.choice((0, 0, 0, 2, 3))
        resources = Resources(
            gpus=gpus * max(1, node_count) if gpus * node_count <= GANG_GPUS_MAX else node_count,
            node_count=node_count,
            cpus=rng.choice((1, 1, 2, 3)),
            min_memory_bytes=None if share_milli else 0,
            share_milli=share_milli,
        )
        long = (rng.uniform(1, 15), rng.uniform(10, 45), rng.uniform(60, RUN_SECONDS_MAX))
        plan = Plan(
            seconds=round(rng.choice((0.05, 1.0, *long)), 3),
            code=rng.choice((0, 0, 0, 0, 3)),
            lines=rng.randint(0, 6),
            term_seconds=rng.choice((0.0, 0.2, 2.0, NEVER)),
            dies_seconds=rng.choice((0.0, 0.0, 0.05, 2.0)),
            lingers_seconds=rng.choice((0.0,) * 8 + (0.5, 4.0)),
            trouble=rng.choice(("-",) * 22 + ("no folder", "no command")),
        )
        choice = self._invent_gpu_choice(resources)
        if choice is not None and self._modes.random() < 0.3:
            plan = replace(plan, code=NEEDS_GPU_EXIT_CODE)
        spec = JobSpec(
            gpu_choice=choice,
            results=("*",) if self._rng_of_results.random() < self._downloads else (),
            keep=("*",) if self._rng_of_kept.random() < self._keeps else (),
            argv=plan.argv(),
            name="train",
            cwd="/",
            resources=resources,
            time_limit=rng.choice((None, None, None, Span(20 * SECOND))),
            grace=Span(rng.choice((0, 1, 5)) * SECOND),
            is_requeueable=rng.random() < 0.75,
            requeue_fence=rng.choice((None, None, seconds(45))),
            queue_timeout=rng.choice((None,) * 7 + (seconds(60),)),
            retries=rng.choice((0, 0, 0, 2)),
            is_preemptible=rng.random() < 0.3,
        )
        return Submission(
            request_id=f"request-{number}",
            user=UserName(rng.choice(USERS)),
            spec=spec,
            band=rng.choice(list(Band)),
            is_held=rng.random() < 0.08,
            count=count,
        )

    def _invent_gpu_choice(self, resources: Resources) -> GpuChoice | None:
        """How some take their GPUs, by chances of its own."""
        rng = self._modes
        mode = rng.choice((None, None, GpuMode.PREFERRED, GpuMode.PREFERRED, GpuMode.NEVER, GpuMode.AUTO))
        if mode is None or (mode is GpuMode.PREFERRED and not resources.gpus):
            return None
        return GpuChoice(asked=mode, mode=mode, content_type=rng.choice(("audio/mpeg", "text/plain")))

    def _invent_items(self) -> Items:
        rng = self._rng
        first, step = rng.randint(0, 9), rng.choice((1, 1, 3))
        indices = Indices.of_ranges([range(first, first + rng.randint(1, 6) * step, step)])
        return Items(indices=indices, active_max=rng.choice((0, 0, 1, 2)), failures_max=rng.choice((0, 0, 1, 2)))

    # --- submits

    def _submit(self, submission: Submission) -> None:
        """Ask, and ask again with the same request_id until there is an answer."""
        if submission.tries:
            self._world.met.add("a request that was asked again")
        else:
            self._choose_what_to_wait_for(submission)
        submission.tries += 1
        tries = submission.tries

        def event(at: Instant) -> Event:
            begin_at = None if submission.begins_in is None else Instant(at + submission.begins_in)
            return JobsSubmitted(
                at=at,
                user=submission.user,
                jobs=(
                    WantedJob(
                        spec=replace(submission.spec, begin_at=begin_at),
                        band=submission.band,
                        is_held=submission.is_held,
                    ),
                ),
                ended={each.job: self._world.checks.outcome(each.job) for each in submission.spec.after},
                count=submission.count,
                items=submission.items,
                request_id=submission.request_id,
                request_digest=submission.request_id,
            )

        self._world.after(ANSWER_SECONDS_MAX, self._ask_again, submission, tries)
        self._send(event, lambda reply: self._answered(submission, reply))

    def _choose_what_to_wait_for(self, submission: Submission) -> None:
        """A time, or the end of a job that was acknowledged before."""
        known = [each.job for each in self.submissions if each.job]
        roll = self._rng.random()
        if roll < 0.1:
            submission.begins_in = seconds(self._rng.uniform(1, 30))
        elif roll < 0.3 and known:
            on = Dependency(job=JobId(self._rng.choice(known)), wanted=self._rng.choice(list(EndWanted)))
            submission.spec = replace(submission.spec, after=(on,))

    def _ask_again(self, submission: Submission, tries: int) -> None:
        if (not submission.job or submission.is_lost) and not submission.refusal and submission.tries == tries:
            self._submit(submission)

    def _answered(self, submission: Submission, reply: Reply | Exception) -> None:
        match reply:
            case Submitted(first=first):
                is_new = not submission.job or submission.is_lost
                if submission.job != first and not is_new:
                    raise Broken(f"{submission.request_id} made job {submission.job} and job {first}", first)
                self._world.checks.acknowledged(first, submission.size)
                self._number_once(submission, first)
                if is_new:
                    self._world.note("{}: {} is job {}", submission.user, submission.request_id, first)
                    self._plan_more(first, submission.size)
                submission.job, submission.is_lost = first, False
                if submission.tries == 1 and self._rng.random() < 0.15:
                    self._world.after(self._rng.uniform(0, 20), self._submit, submission)
            case Refused(reason=reason):
                submission.refusal = reason
            case _:
                pass

    def _number_once(self, submission: Submission, first: int) -> None:
        """No number is given to two requests, also not by histories that know nothing of each other."""
        for job in range(first, first + submission.size):
            if self._numbers.setdefault(job, submission) is not submission:
                raise Broken(f"{job} is a job of {self._numbers[job].request_id} and of {submission.request_id}", job)

    def put_back(self) -> None:
        """Some find that their jobs are gone, and ask for them again by the same request."""
        self._histories += 1
        for submission in self.submissions:
            if submission.job and not submission.is_lost and not self._world.checks.is_stored(submission.job):
                self._world.note("{}: job {} of {} is lost", submission.user, submission.job, submission.request_id)
                self._world.met.add("a job that was lost")
                submission.is_lost = True
                if self._rng_of_losses.random() < 0.5:
                    self._world.after(self._rng_of_losses.uniform(0.0, 30.0), self._submit, submission)

    # --- changes of mind

    def _plan_more(self, first: int, count: int) -> None:
        for job in range(first, first + count):
            roll = self._rng.random()
            what = next((change for limit, change in self._changes() if roll < limit), None)
            if what is not None:
                at_once = self._rng.choice((0.0, 0.01, 0.3))
                seconds = at_once if self._rng.random() < 0.5 else self._rng.uniform(0.0, 40.0)
                self._world.after(seconds, what, JobId(job))

    def _changes(self) -> tuple[tuple[float, Callable[[JobId], None]], ...]:
        """What a person does about a job, each with the chance up to which it is that."""
        return (0.1, self._cancel), (0.18, self._abandon), (0.26, self._requeue), (0.32, self._others)

    def _cancel(self, job: JobId) -> None:
        self._ask(lambda at, by: CancelRequested(at=at, by=by, jobs=(job,)))

    def _abandon(self, job: JobId) -> None:
        self._ask(lambda at, by: CancelRequested(at=at, by=by, jobs=(job,), is_abandoned=True))

    def _requeue(self, job: JobId) -> None:
        self._ask(lambda at, by: RequeueRequested(at=at, by=by, jobs=(job,)))

    def _others(self, job: JobId) -> None:
        band = self._rng.choice(list(Band))
        self._ask(lambda at, by: BandRequested(at=at, by=by, jobs=(job,), band=band))
        self._ask(lambda at, by: SignalRequested(at=at, by=by, jobs=(job,), signal=10))
        self._ask(lambda at, by: HoldRequested(at=at, by=by, jobs=(job,), is_held=True))

    def drain(self, node: str, *, is_draining: bool) -> None:
        self._ask(lambda at, by: DrainRequested(at=at, by=by, node=NodeName(node), is_draining=is_draining))

    def forget(self, node: str) -> None:
        self._ask(lambda at, by: ForgetRequested(at=at, by=by, node=NodeName(node)))

    def settle(self, nodes: list[str], *, are_fewer: bool = False) -> None:
        """Once all works again: release what is held, resume what drains; with fewer nodes, cancel what never fits."""
        jobs = tuple(
            JobId(job) for each in self.submissions if each.job for job in range(each.job, each.job + each.count)
        )
        self._ask(lambda at, by: HoldRequested(at=at, by=by, jobs=jobs, is_held=False))
        for node in nodes:
            self.drain(node, is_draining=False)
        never = self._never_fitting() if are_fewer else ()
        if never:
            self._ask(lambda at, by: CancelRequested(at=at, by=by, jobs=never))

    def _never_fitting(self) -> tuple[JobId, ...]:
        """Jobs of which the scheduler says that they wait for what the nodes that are left can never give."""
        scheduler = self._world.scheduler
        if scheduler is None:
            return ()
        state, at = scheduler.engine.view, scheduler.engine.now()
        waiting = (job for job in state.durable.jobs.values() if isinstance(job.state, Queued))
        return tuple(job.id for job in waiting if explain(state, job, at).reason == "NEVER_FITS")

    def seconds_left(self) -> float:
        """How long all that has not ended takes if one job runs after the other, as a cap or a small fleet may have it.

        Items of an array under a cap of one, jobs after each other, users who may hold no more: none takes longer.
        """
        asked = (each for each in self.submissions if not each.refusal and not each.is_lost)
        return sum(self._jobs_left(each) * each.run_seconds for each in asked)

    def _jobs_left(self, submission: Submission) -> int:
        if not submission.job:
            return submission.size
        jobs = range(submission.job, submission.job + submission.size)
        return sum(self._world.checks.outcome(job) is None for job in jobs)

    # --- the way

    def _ask(self, event: Callable[[Instant, UserName], Event]) -> None:
        self._send(lambda at: event(at, UserName("alice")), lambda reply: None)

    def _send(self, event: Callable[[Instant], Event], answer: Callable[[Reply | Exception], None]) -> None:
        """Through the network, to whichever scheduler is there, and back; either way it may be lost.

        So is an answer of a history that ended on its way: who had it earlier has a job that is lost.
        """

        def arrive() -> None:
            scheduler, history = self._world.scheduler, self._histories

            def arrive_back(reply: Reply | Exception) -> None:
                if history == self._histories:
                    answer(reply)

            if scheduler is not None:
                scheduler.request(
                    event, lambda reply: self._world.after(self._world.network.delay(), arrive_back, reply)
                )

        if not self._world.network.chance(0.02):
            self._world.after(self._world.network.delay(), arrive)
