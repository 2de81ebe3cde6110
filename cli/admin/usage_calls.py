"""What `usage` asks and shows, with `--sessions` and `--requests` too."""

from __future__ import annotations

from datetime import UTC, datetime

from gpufleet.v1 import capacity_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.reading import check_known
from gpufleet.fleet.settings import Settings

from .. import screen
from ..logs.request import since_moment, stamp_of, until_moment
from ..printing import print_list
from ..render.request_usage import request_usage_screen
from ..render.usage import session_usage_screen, usage_screen

GROUPS = {
    "user": capacity_pb2.USAGE_GROUP_USER,
    "node": capacity_pb2.USAGE_GROUP_NODE,
    "model": capacity_pb2.USAGE_GROUP_MODEL,
    "band": capacity_pb2.USAGE_GROUP_BAND,
    "group": capacity_pb2.USAGE_GROUP_GROUP,
}
NO_NAME = "-"


def usage_request(by: str, since: str, until: str | None, user: str, now: datetime) -> capacity_pb2.ListUsageRequest:
    """What is asked. Raises INVALID_ARGUMENT for a time that is none, in the future, or in the wrong order."""
    check_known("--by", by, GROUPS, f"is none of {', '.join(GROUPS)}")
    begin, end = span_asked(since, until, now)
    return capacity_pb2.ListUsageRequest(
        group=GROUPS[by], start_time=stamp_of(begin), end_time=stamp_of(end), user=user
    )


def span_asked(since: str, until: str | None, now: datetime) -> tuple[datetime, datetime]:
    """From --since to --until. Errors: INVALID_ARGUMENT for what is no time, is in the future or in the wrong order."""
    begin = since_moment(since, now)
    end = now if until is None else until_moment(until, now)
    if begin >= end:
        raise invalid("--until", f'"{until or "now"}" is not after --since', next_step="Write --since 14d --until 7d.")
    return begin, end


def show_usage(settings: Settings, by: str, since: str, until: str | None, user: str) -> None:
    """Print what was used."""
    request = usage_request(by, since, until, user, datetime.now(UTC))
    with connected(settings) as client:
        request.user = _named(client, user)
        answer = client.call(client.scheduler.ListUsage, request)
    print_list(
        settings.format,
        answer.rows,
        whole=answer,
        name=lambda row: row.name or NO_NAME,
        lines=lambda look: usage_screen(by, answer, screen.local_now(), look, request.end_time if until else None),
    )


def _named(client: Client, user: str) -> str:
    """The user of that name; me is who asks."""
    if user != "me":
        return user
    return str(client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user)


DAY_SECONDS = 86_400


def refuse_usage_options(*, sessions: bool, requests: bool, by: str | None, user: str, model: str) -> None:
    """Options that say nothing of what is asked for. Raises INVALID_ARGUMENT."""
    if sessions and requests:
        raise invalid("--requests", "is another table than --sessions", next_step="Ask for one of them.")
    if sessions:
        for option, value in (("--by", by), ("--user", user)):
            if value:
                why = "is of what jobs used; sessions are counted by model and day"
                raise invalid(option, why, next_step="Leave it out, or leave out --sessions.")
    elif requests:
        if by:
            why = "is of what jobs used; requests are counted by user and program"
            raise invalid("--by", why, next_step="Leave it out, or leave out --requests.")
    elif model:
        step = "Write gpuctl usage --sessions --model NAME, --requests --model NAME, or --by model."
        raise invalid("--model", "is of sessions and of requests", next_step=step)


def session_usage_request(
    since: str, until: str | None, model: str, now: datetime
) -> sessions_pb2.ListSessionUsageRequest:
    """What is asked: whole days of this machine's time zone, from that of --since on. Errors: those of both times."""
    begin, end = span_asked(since, until, now)
    midnight = begin.astimezone(now.tzinfo).replace(hour=0, minute=0, second=0, microsecond=0)
    request = sessions_pb2.ListSessionUsageRequest(start_time=stamp_of(midnight), end_time=stamp_of(end), model=model)
    request.step.FromSeconds(DAY_SECONDS)
    return request


def show_session_usage(settings: Settings, since: str, until: str | None, model: str) -> None:
    """Print who came to the models."""
    now = screen.local_now()
    request = session_usage_request(since, until, model, now)
    with connected(settings) as client:
        answer = client.call(client.scheduler.ListSessionUsage, request)
    print_list(
        settings.format,
        answer.steps,
        whole=answer,
        name=lambda row: row.model,
        lines=lambda look: session_usage_screen(answer, now, look),
    )


def show_request_usage(settings: Settings, since: str, until: str | None, user: str, model: str) -> None:
    """Print what requests to programs came to."""
    now = screen.local_now()
    begin, end = span_asked(since, until, now)
    with connected(settings) as client:
        request = sessions_pb2.ListRequestUsageRequest(
            start_time=stamp_of(begin), end_time=stamp_of(end), user=_named(client, user), model=model
        )
        answer = client.call(client.scheduler.ListRequestUsage, request)
    print_list(
        settings.format,
        answer.rows,
        whole=answer,
        name=lambda row: f"{row.user or NO_NAME} {row.model}",
        lines=lambda look: request_usage_screen(answer, now, look, request.end_time if until else None),
    )
