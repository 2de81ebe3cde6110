"""What `group` asks and shows."""

from __future__ import annotations

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.client import Client, all_pages, connected
from gpufleet.fleet.settings import Settings

from .. import screen
from ..printing import print_answer, print_list
from ..render.groups import group_lines, group_table, member_table

NONE = "none"
"""What is typed to take a cap away."""
BANDS = {name.removeprefix("BAND_").lower(): number for name, number in job_pb2.Band.items() if number}


def show_groups(settings: Settings) -> None:
    """Print the groups that the caller may see."""
    with connected(settings) as client:
        whole = _groups(client)
    print_list(
        settings.format,
        whole.groups,
        whole=whole,
        name=lambda each: each.name,
        lines=lambda look: group_table(whole.groups, look),
    )


def show_members(settings: Settings, name: str) -> None:
    """Print who is in a group."""
    with connected(settings) as client:
        found = _groups(client, name).groups
    if not found:
        raise GpufleetError(Reason.GROUP_NOT_FOUND, f"you see no group {name!r}")
    now = screen.local_now()
    print_list(
        settings.format,
        found[0].members,
        whole=found[0],
        name=lambda each: each.user,
        lines=lambda look: member_table(found[0], now, look),
    )


def change_group(
    settings: Settings,
    name: str,
    *,
    gpus: str | None,
    gpu_hours_week: str | None,
    max_band: str | None,
    shares: int | None,
    add: list[str],
    remove: list[str],
) -> None:
    """Make a group, or change it."""
    request = scheduler_pb2.SetGroupRequest(
        name=name,
        gpus_max=_cap(gpus, "--gpus"),
        gpu_hours_week=_cap(gpu_hours_week, "--gpu-hours-week"),
        max_band=_band(max_band),
        shares=shares,
        add_members=_names(add),
        remove_members=_names(remove),
    )
    with connected(settings) as client:
        answer = client.call_again(client.scheduler.SetGroup, request)
    how = "is made" if answer.is_new else "is changed" if answer.changed else "is like that already"
    print_answer(
        settings.format,
        answer.group,
        answer.group.name,
        lambda _: [f"group {answer.group.name} {how}: {group_lines(answer.group)}"],
    )
    for note in answer.notes:
        screen.tell(note)


def call_group(settings: Settings, name: str, new_name: str) -> None:
    """Give a group another name."""
    with connected(settings) as client:
        answer = client.call(
            client.scheduler.RenameGroup, scheduler_pb2.RenameGroupRequest(name=name, new_name=new_name)
        )
    print_answer(
        settings.format, answer.group, answer.group.name, lambda _: [f"group {name} is called {answer.group.name}"]
    )


def end_group(settings: Settings, name: str) -> None:
    """Remove a group."""
    with connected(settings) as client:
        answer = client.call(client.scheduler.RemoveGroup, scheduler_pb2.RemoveGroupRequest(name=name))
    line = f"group {name} is removed; what runs in it runs on, and what waits goes on as of no group"
    print_answer(settings.format, answer.group, answer.group.name, lambda _: [line])


def _groups(client: Client, name: str = "") -> scheduler_pb2.ListGroupsResponse:
    whole = scheduler_pb2.ListGroupsResponse()
    request = scheduler_pb2.ListGroupsRequest(name=name, page_size=1000)
    for page in all_pages(client, client.scheduler.ListGroups, request):
        whole.groups.extend(page.groups)
    return whole


def _cap(typed: str | None, option: str) -> int | None:
    if typed is None:
        return None
    if typed == NONE:
        return 0
    if not typed.isascii() or not typed.isdigit() or not int(typed):
        raise invalid(option, f"is {typed!r}", next_step=f"give a whole number, as {option} 8, or {option} none")
    return int(typed)


def _band(typed: str | None) -> job_pb2.Band.ValueType | None:
    if typed is None:
        return None
    if typed == NONE:
        return job_pb2.BAND_UNSPECIFIED
    if typed not in BANDS:
        raise invalid("--max-band", f"is {typed!r}", next_step="give low, normal, high, urgent, or none")
    return BANDS[typed]


def _names(typed: list[str]) -> list[str]:
    return [name for each in typed for name in each.split(",") if name]
