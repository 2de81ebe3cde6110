"""Records that nobody writes any more: each is read as what would be written in its place now.

A kind stands here as long as a store may hold it, which is as long as records are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..state.ids import JobId, NodeName
from ..state.records import JobWarned, Record
from ..state.units import Instant
from ..state.warnings import JobWarning, WarningKind


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDeviceMarked:
    """A device that a job holds is in trouble; before jobs had warnings."""

    at: Instant
    job: JobId
    node: NodeName
    index: int
    reason: str = ""


def _warned(old: JobDeviceMarked) -> JobWarned:
    """Of which attempt it was is not known."""
    because = f": {old.reason}" if old.reason else ""
    sentence = f"GPU {old.index} of node {old.node}, which it holds, is unhealthy{because}."
    about = (f"{old.node}:{old.index}",)
    warning = JobWarning(kind=WarningKind.DEVICE_TROUBLE, at=old.at, attempt=0, sentence=sentence, about=about)
    return JobWarned(at=old.at, job=old.job, warning=warning)


RETIRED: dict[str, tuple[type[Any], Callable[[Any], Record]]] = {"JobDeviceMarked": (JobDeviceMarked, _warned)}
"""Kind → the class that its payloads are of, and what one is read as."""
