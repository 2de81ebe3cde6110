"""What befell groups of users, in sentences for the audit, and in short for transcripts."""

from ..state.groups.changes import GroupForgotten, GroupRecord, GroupRemoved, GroupRenamed, GroupSet
from ..state.groups.group import UserGroup


def group_sentence(record: GroupRecord) -> str:
    """One sentence for people."""
    match record:
        case GroupSet(group=group, by=by):
            return f"{by} {'made' if record.is_new else 'changed'} group {group.name}: {_rules(group)}."
        case GroupRenamed(old_name=old, name=name, by=by):
            return f"{by} renamed group {old} to {name}."
        case GroupRemoved(name=name, by=by):
            return f"{by} removed group {name}."
        case GroupForgotten(name=name):
            return f"Group {name}, which was removed long ago, is not known by name any more."


def tell_group(record: GroupRecord) -> str:
    """The short form of a record."""
    name = type(record).__name__
    match record:
        case GroupSet(group=group):
            return f"{name} {group.name}: {_rules(group)}"
        case GroupRenamed(old_name=old, name=new):
            return f"{name} {old} to {new}"
        case GroupRemoved() | GroupForgotten():
            return f"{name} {record.name}"


def _rules(group: UserGroup) -> str:
    gpus = f"{group.gpus_max} GPUs" if group.gpus_max else "any number of GPUs"
    hours = f"{group.gpu_hours_week:,} GPU-hours a week, " if group.gpu_hours_week else ""
    band = f"band {group.max_band.name.lower()} at most, " if group.max_band is not None else ""
    shares = "1 share" if group.shares == 1 else f"{group.shares} shares"
    members = ", ".join(each.user for each in group.members[:MEMBERS_TOLD]) or "nobody"
    more = f" and {len(group.members) - MEMBERS_TOLD} more" if len(group.members) > MEMBERS_TOLD else ""
    return f"{gpus}, {hours}{band}{shares}; members: {members}{more}"


MEMBERS_TOLD = 20
"""Members that a sentence names."""
