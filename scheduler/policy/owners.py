"""Whose jobs a node takes: everybody's, or those of its owner alone, where it runs them all as one account.

What a user asks for who owns such nodes is a class of request of its own: nodes take it that take nobody else's. All
other users are alike, and share their classes. A job is looked at `as_its_users` wherever it enters a choice, and
nothing of that is stored. Rule: docs/rules/jobs.md 4.37.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from ..state.durable import Durable
from ..state.ids import UserName
from ..state.jobs import Job
from ..state.nodes import NodeInfo
from ..state.specs import Asked, Resources

CLASSES_KEPT = 1_000
"""Classes of request of owners that are remembered, so that one is one object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersResources(Resources):
    """What a user asks for who owns nodes that take nobody else's jobs."""

    user: UserName


def takes_jobs_of(info: NodeInfo, resources: Resources) -> bool:
    """Whether a node takes jobs of who asks for this."""
    if not info.job_accounts.is_alone:
        return True
    return isinstance(resources, OwnersResources) and resources.user == info.job_accounts.owner


def asked_by(durable: Durable, user: UserName, asked: Asked) -> Asked:
    """The class of request of a user who asks for this."""
    return asked if user not in durable.owners() else _owners_class(user, asked)


def as_its_users(durable: Durable, job: Job) -> Job:
    """A job, as one of a user who owns nodes, where its user does."""
    if job.user not in durable.owners() or isinstance(job.spec.resources, OwnersResources):
        return job
    asked = _owners_class(job.user, job.spec.asked)
    spec = replace(job.spec, resources=asked.resources)
    spec.share_class(asked)
    return replace(job, spec=spec)


def as_anybodys(asked: Asked) -> Asked:
    """The class of request as jobs stand in line by it."""
    resources = asked.resources
    if not isinstance(resources, OwnersResources):
        return asked
    return Asked(Resources(**{each.name: getattr(resources, each.name) for each in fields(Resources)}), asked.run_span)


@lru_cache(maxsize=CLASSES_KEPT)
def _owners_class(user: UserName, asked: Asked) -> Asked:
    resources = asked.resources
    told = {each.name: getattr(resources, each.name) for each in fields(Resources)}
    return Asked(OwnersResources(**told, user=user), asked.run_span)
