"""The order itself: the jobs that a pass tries, one after the other, and which of two comes first."""

from collections.abc import Iterator

from ...state.jobs import Job
from ...state.state import State
from ...state.units import Instant
from ..gap import gap_hold
from ..groups.turns import Turn, turn_at
from ..owners import as_its_users
from .band import GivenUp, band_order


def is_old(state: State, job: Job, at: Instant) -> bool:
    """Whether a waiting job has grown so old that it goes in front of its band."""
    return job.age_since < age_cutoff(state, at)


def age_cutoff(state: State, at: Instant) -> Instant:
    """Jobs whose age counts from before this instant are old."""
    age_limit = state.limits.age_limit
    return Instant(at - age_limit) if age_limit else Instant(0)


def queue_order(state: State, at: Instant, given_up: GivenUp = (), until: Job | None = None) -> Iterator[Job]:
    """Eligible jobs in the order in which they are tried.

    What is asked for in `given_up`, by anybody or by one user, is left out from the moment it stands there, at no cost
    for the jobs that wait with it. Those that wait since history was cut off are left out. `until` is the job before
    which it ends.
    """
    durable, old_before, hold = state.durable, age_cutoff(state, at), gap_hold(state, at)
    held_before = Instant(0) if hold is None else hold.all_before
    for band, lines in durable.lines.of_band.items():
        if until is not None and band < until.band:
            return
        end = turn_of(state, until, at) if until is not None and band == until.band else None
        for turn, entry, _ in band_order(durable, lines, at, old_before, given_up, held_before=held_before):
            if end is not None and turn >= end:
                return
            job = durable.jobs[entry[1]]
            if hold is None or not hold.holds(job):
                yield as_its_users(durable, job)


def goes_before(state: State, job: Job, other: Job, at: Instant) -> bool:
    """Whether a job that waits in line stands before another one that does not, stood that in line, too."""
    if job.band != other.band:
        return job.band > other.band
    return turn_of(state, job, at) < turn_of(state, other, at)


def turn_of(state: State, job: Job, at: Instant) -> Turn:
    """The turn that a job has in its band, or would have, stood it in line."""
    durable = state.durable
    entry = (job.age_since, job.id)
    lines = durable.lines.of_band[job.band]
    return turn_at(durable, lines, durable.lines.owner_of(job), entry, at, age_cutoff(state, at))
