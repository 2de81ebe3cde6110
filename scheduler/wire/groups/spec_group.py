"""A group's name, and that of the group which a job is to be of. Errors: INVALID_ARGUMENT with the field."""

import re

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid

from ...state.groups.group import GroupName

GROUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def group_name(name: str, path: str) -> GroupName:
    """A group's name."""
    if not GROUP_NAME.fullmatch(name):
        raise invalid(
            path,
            f"{name[:80]!r} is not a group's name",
            next_step="use 1 to 63 letters, digits, '.', '-' or '_', beginning with a letter or digit",
        )
    return GroupName(name)


def group_of_spec(spec: job_pb2.JobSpec, path: str) -> str:
    """The group that a job is to be of; empty where it names none."""
    return group_name(spec.group, f"{path}.group") if spec.group else ""
