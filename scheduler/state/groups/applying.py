"""How a decided fact about groups changes what survives a restart: the part of `apply` that is theirs."""

from dataclasses import replace
from typing import assert_never

from ..attempts import EndedAttempt
from ..durable import Durable, Entity, adopt, discard, key_of, member_use_key
from ..jobs import Job
from ..shares import WHOLE_MILLI
from ..units import SECOND
from ..usage import Usage, weight_of
from .changes import GroupForgotten, GroupRecord, GroupRemoved, GroupRenamed, GroupSet
from .use import GroupUse, MemberUse, milli_us_in_week, week_of


def apply_group(durable: Durable, record: GroupRecord) -> None:
    """Make a decided fact true."""
    groups = durable.groups
    match record:
        case GroupSet(group=group):
            _put(durable, group)
            if group.id >= durable.counters.next_group:
                _put(durable, replace(durable.counters, next_group=group.id + 1))
        case GroupRenamed(group=group_id, name=name):
            _put(durable, groups.by_id[group_id].renamed(name))
        case GroupRemoved(group=group_id, at=at):
            _put(durable, groups.by_id[group_id].removed(at))
            if group_id in durable.group_use:
                _drop(durable, ("group_use", str(group_id)))
            for user in tuple(durable.member_use.get(group_id, ())):
                _drop(durable, member_use_key(group_id, user))
        case GroupForgotten(group=group_id):
            _drop(durable, ("group", str(group_id)))
        case _:
            assert_never(record)


def charge_group(durable: Durable, job: Job, ended: EndedAttempt) -> None:
    """Count what an attempt has used for the group of its job, as `Usage` does for its user; not for a removed one."""
    if durable.groups.live(job.group) is None:
        return
    at, week = ended.ended_at, week_of(ended.ended_at)
    cpu_seconds = weight_of(job.spec.resources, len(ended.ranks)) / WHOLE_MILLI * max(0, at - ended.held_since) / SECOND
    milli_us = milli_us_in_week(job.spec.resources.gpu_milli, ended.held_since, at)
    known = durable.group_use.get(job.group) or GroupUse(group=job.group, cpu_seconds=0.0, at=at, week=week)
    charged = Usage(user=job.user, cpu_seconds=known.cpu_seconds, at=known.at).charged(cpu_seconds, at)
    # An end may be noted behind one of a later week: what was used in an earlier week counts for no cap any more.
    newest = max(week, known.week)
    used = known.in_week(newest) + (milli_us if week == newest else 0)
    _put(
        durable,
        GroupUse(group=job.group, cpu_seconds=charged.cpu_seconds, at=charged.at, week=newest, gpu_milli_us=used),
    )
    mine = durable.member_use.get(job.group, {}).get(job.user)
    if milli_us and week == newest:
        used = milli_us + (0 if mine is None else mine.in_week(week))
        _put(durable, MemberUse(group=job.group, user=job.user, week=week, gpu_milli_us=used))


def _put(durable: Durable, entity: Entity) -> None:
    adopt(durable, entity)
    durable.touched[key_of(entity)] = entity


def _drop(durable: Durable, key: tuple[str, str]) -> None:
    discard(durable, key)
    durable.touched[key] = None
