"""Slots: a place on a node that attempts of like jobs take one after the other, without a word between.

The first attempt of a slot was placed on what was free. Those that were placed behind it wait in the node's backlog;
all have the same placement, which the slot holds once, as long as any of them is live. Rules: docs/rules/jobs.md 2.35.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ..attempts import Attempt
from ..groups.group import GroupId
from ..ids import NodeName, RankKey, UserName
from ..jobs import Job, Running, Starting
from ..programs import program_of
from ..specs import Asked, Band


class SlotClass(NamedTuple):
    """Whose attempts take a slot from each other: of one user, band and group, of one name, program and request."""

    band: Band
    group: GroupId
    user: UserName
    name: str
    program: str
    asked: Asked


@dataclass(slots=True)
class ClassSlots:
    """The slots in which a class has live attempts, by how many."""

    counts: dict[RankKey, int] = field(default_factory=dict)
    by_count: dict[int, dict[RankKey, NodeName]] = field(default_factory=dict)

    def count(self, slot: RankKey, node: NodeName, number: int) -> None:
        """Count an attempt of a slot in, or out with −1."""
        before = self.counts.pop(slot, 0)
        if before:
            slots = self.by_count[before]
            del slots[slot]
            if not slots:
                del self.by_count[before]
        if now := before + number:
            self.counts[slot] = now
            self.by_count.setdefault(now, {})[slot] = node


def slot_class(job: Job) -> SlotClass | None:
    """The class of a job that may wait in a backlog; None for one that never does.

    Nothing stands between its turn and its first instruction: it has no files, environment or container to be made, is
    typed to by nobody, has one rank on whole devices, and does not do without GPUs that it prefers. It may be queued
    again: what is given to a node early is lost with it more often.
    """
    spec = job.spec
    if (
        spec.serves
        or not spec.is_requeueable
        or spec.input is not None
        or spec.files
        or spec.folder is not None
        or spec.inputs
        or spec.leaves
        or spec.environment is not None
        or spec.container is not None
        or spec.gpu_choice is not None
        or spec.resources.share_milli
        or spec.resources.node_count > 1
    ):
        return None
    return SlotClass(job.band, job.group, job.user, spec.name, program_of(spec.argv), spec.asked)


def slot_of(key: RankKey, attempt: Attempt) -> RankKey:
    """The slot that a rank has its place in: its own, if it was placed on what was free."""
    return key if attempt.slot is None else attempt.slot


def is_in_backlog(job: Job) -> bool:
    """Whether a job's attempt waits in its node's backlog, as far as is known, and was not asked back."""
    if not isinstance(job.state, Starting):
        return False
    return job.state.attempt.slot is not None and not job.state.attempt.is_asked_back


def goes_on(job: Job) -> bool:
    """Whether nothing speaks against another attempt behind this job's in its slot."""
    return isinstance(job.state, Starting | Running) and not (
        job.state.attempt.is_unreachable or job.state.attempt.is_asked_back
    )
