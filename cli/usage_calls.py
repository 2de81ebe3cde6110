"""What `usage` asks and shows."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import capacity_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.spelling import did_you_mean

from . import screen
from .client import connected
from .listing import print_list
from .log_request import since_moment
from .render.usage import usage_screen
from .settings import Settings

GROUPS = {
    "user": capacity_pb2.USAGE_GROUP_USER,
    "node": capacity_pb2.USAGE_GROUP_NODE,
    "model": capacity_pb2.USAGE_GROUP_MODEL,
    "band": capacity_pb2.USAGE_GROUP_BAND,
}
NO_NAME = "-"


def usage_request(by: str, since: str, until: str | None, user: str, now: datetime) -> capacity_pb2.ListUsageRequest:
    """What is asked. Raises INVALID_ARGUMENT for a time that is none, in the future, or in the wrong order."""
    if by not in GROUPS:
        raise invalid("--by", f'"{by}" is none of {", ".join(GROUPS)}{did_you_mean(by, GROUPS)}')
    begin = since_moment(since, now)
    end = now
    if until is not None:
        try:
            end = since_moment(until, now)
        except GpufleetError as problem:
            why = problem.violations[0].why if problem.violations else problem.message
            raise invalid("--until", why, next_step=problem.next_step) from None
    if begin >= end:
        raise invalid("--until", f'"{until or "now"}" is not after --since', next_step="Write --since 14d --until 7d.")
    return capacity_pb2.ListUsageRequest(group=GROUPS[by], start_time=_stamp(begin), end_time=_stamp(end), user=user)


def _stamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(UTC))
    return stamp


def show_usage(settings: Settings, by: str, since: str, until: str | None, user: str) -> None:
    """Print what was used."""
    request = usage_request(by, since, until, user, datetime.now(UTC))
    with connected(settings) as client:
        if request.user == "me":
            request.user = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user
        answer = client.call(client.scheduler.ListUsage, request)
    print_list(
        settings.format,
        answer.rows,
        whole=answer,
        name=lambda row: row.name or NO_NAME,
        lines=lambda look: usage_screen(by, answer, screen.local_now(), look, request.end_time if until else None),
    )
