"""Whom the refusal of a rank blames, and so what the scheduler makes of it: a kind for each reason."""

from __future__ import annotations

from enum import Enum

from .commands import NotLaunched
from .expectations import Unfit
from .launch import RefusalReason
from .outcome import LaunchFailure


class RefusalKind(Enum):
    """Whom a refusal blames; the contract says what follows from each."""

    REQUEST = "request"
    JOB_HERE = "job here"
    JOB_NOW = "job now"
    DEVICES = "devices"
    NODE = "node"
    NOBODY = "nobody"


_OF_REQUEST = (
    RefusalReason.BAD_REQUEST,
    RefusalReason.ARGV_TOO_LONG,
    RefusalReason.OUTPUT_FILE_UNUSABLE,
    RefusalReason.FILES_CHANGED,
    RefusalReason.FILES_GONE,
    RefusalReason.IMAGE_NOT_FOUND,
    RefusalReason.INPUT_UNUSABLE,
    RefusalReason.MOUNT_REFUSED,
    RefusalReason.RLIMIT_TOO_HIGH,
    RefusalReason.SETUP_FAILED,
    NotLaunched.INVALID_LAUNCH,
    LaunchFailure.COMMAND_NOT_FOUND,
    LaunchFailure.NOT_EXECUTABLE,
)
_OF_JOB_HERE = (
    RefusalReason.ACCOUNT_UNUSABLE,
    RefusalReason.CWD_MISSING,
    RefusalReason.IMAGE_NEEDS_DRIVER,
    # The engine was asked several times already, and most such images cannot be pulled on any node.
    RefusalReason.IMAGE_PULL_FAILED,
    RefusalReason.NODE_OF_ANOTHER,
)
_OF_JOB_NOW = (
    RefusalReason.CONTAINER_FAILED,
    RefusalReason.FILES_UNAVAILABLE,
    RefusalReason.NO_ENGINE,
    RefusalReason.NO_GPU_CONTAINERS,
)
_OF_DEVICES = (Unfit.DEVICE_BUSY, Unfit.DEVICE_UNHEALTHY)
_OF_NOBODY = (NotLaunched.ABORTED, NotLaunched.STOPPED_BEFORE_START, NotLaunched.TAKEN_BACK)

_KINDS: dict[str, RefusalKind] = {
    reason.value: kind
    for kind, reasons in (
        (RefusalKind.REQUEST, _OF_REQUEST),
        (RefusalKind.JOB_HERE, _OF_JOB_HERE),
        (RefusalKind.JOB_NOW, _OF_JOB_NOW),
        (RefusalKind.DEVICES, _OF_DEVICES),
        (RefusalKind.NOBODY, _OF_NOBODY),
    )
    for reason in reasons
}


def kind_of(reason: str) -> RefusalKind:
    """Whom a refusal for this reason blames; what is not listed is about the node itself, such as its keeper."""
    return _KINDS.get(reason, RefusalKind.NODE)
