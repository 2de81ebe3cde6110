"""What specs have in common is checked, and kept, once: within a request, and for what is submitted again and again."""

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any, Literal

from gpufleet.v1 import job_pb2

from ..state.jobs import Items
from ..state.specs import Asked, Band, JobSpec

OWN_FIELDS: tuple[Literal["argv", "name", "trace_context"], ...] = ("argv", "name", "trace_context")
"""What jobs differ by that have all else in common."""
COMMON_FIELDS = tuple(each.name for each in fields(JobSpec) if each.name not in OWN_FIELDS)
KEPT = 256
"""Kinds of spec that are remembered from one request to the next; those that came last."""
KEPT_BYTES_MAX = 4_096
"""What is longer (a whole environment, as a rule) is remembered within its request only."""

Key = bytes


@dataclass(frozen=True, slots=True)
class CheckedSpec:
    """A checked spec with what belongs to the job and not to the spec."""

    spec: JobSpec
    band: Band
    is_held: bool
    items: Items | None = None
    group: str = ""
    """The name of the group that it is of, empty for none."""


@dataclass(frozen=True, slots=True)
class Common:
    """What a checked spec has in common with others of its kind."""

    shared: dict[str, Any]
    asked: Asked
    band: Band
    is_held: bool
    items: Items | None
    group: str

    @staticmethod
    def of(wanted: CheckedSpec) -> "Common":
        """What others may share with this one."""
        shared = {name: getattr(wanted.spec, name) for name in COMMON_FIELDS}
        return Common(shared, wanted.spec.asked, wanted.band, wanted.is_held, wanted.items, wanted.group)

    def with_own(self, argv: tuple[str, ...], name: str, trace_context: str) -> CheckedSpec:
        """Another one of the kind, with what it has of its own, checked."""
        spec = JobSpec(argv=argv, name=name, trace_context=trace_context, **self.shared)
        spec.share_class(self.asked)
        return CheckedSpec(spec, self.band, self.is_held, self.items, self.group)


class KnownSpecs:
    """The kinds that were checked lately. Whether a spec is right depends on nothing but itself, so they stay right."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Common] = OrderedDict()

    def get(self, key: Key) -> Common | None:
        """What is common to a kind, if one of it came lately."""
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
        return known

    def keep(self, key: Key, common: Common) -> None:
        """Remember a kind, in place of the one that was not asked for the longest."""
        if len(key) <= KEPT_BYTES_MAX:
            self._kept[key] = common
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)


def key_of(spec: job_pb2.JobSpec) -> Key:
    """The kind of a spec: all of it but what each has of its own."""
    common = job_pb2.JobSpec()
    common.CopyFrom(spec)
    for field in OWN_FIELDS:
        common.ClearField(field)
    return common.SerializeToString(deterministic=True)
