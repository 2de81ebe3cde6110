"""Groups of users as protos, with what they hold and have used this week."""

from gpufleet.v1 import job_pb2, scheduler_pb2

from ...policy.groups.caps import used_of_group, used_of_members
from ...state.durable import Durable
from ...state.groups.group import UserGroup
from ...state.groups.use import WEEK, GroupHold, hours_of, week_of
from ...state.jobs import Job
from ...state.units import Instant, after
from ..convert import timestamp


def user_group_proto(durable: Durable, group: UserGroup, at: Instant) -> scheduler_pb2.UserGroup:
    """A group as it is at an instant."""
    hold = durable.holds_of_group.get(group.id) or GroupHold()
    held, used = hold.milli_of_users(), used_of_members(durable, group.id, at)
    return scheduler_pb2.UserGroup(
        id=group.id,
        name=group.name,
        create_time=timestamp(group.created_at),
        gpus_max=group.gpus_max,
        gpu_hours_week=group.gpu_hours_week,
        max_band=job_pb2.Band.ValueType(0 if group.max_band is None else int(group.max_band)),
        shares=group.shares,
        members=[
            scheduler_pb2.GroupMember(
                user=each.user,
                join_time=timestamp(each.since),
                is_default=durable.groups.default_of(each.user) == group.id,
                gpus_milli=held.get(each.user, 0),
                gpu_hours=hours_of(used.get(each.user, 0)),
            )
            for each in group.members
        ],
        gpus_milli=hold.total.gpu_milli,
        gpu_hours=hours_of(used_of_group(durable, group.id, at)),
        week_end_time=timestamp(after(week_of(at), WEEK)),
    )


def show_group(message: job_pb2.Job, durable: Durable, job: Job) -> None:
    """Name a job's group in its message, as it is called now."""
    if job.group:
        message.spec.group = durable.groups.name_of(job.group)
        message.group_is_removed = durable.groups.live(job.group) is None
