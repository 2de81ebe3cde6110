"""`group`: groups of users, what they may have, and who is in them."""

from __future__ import annotations

from typing import Annotated

from ..app import Family
from ..declaring import Argument, Option
from ..options import Printing

group = Family("group", "Group users: caps, shares, a highest band, and who is in each.")

Name = Annotated[str, Argument(metavar="NAME", help="The group's name, from gpuctl group list.")]


@group.subcommand("list")
def list_groups(options: Printing) -> None:
    """List groups with what they may have and what they have: all of them for admins, and for others their own.

    HOURS are the GPU-hours of this week, which begins on Monday at 00:00 UTC.
    """
    from .group_calls import show_groups

    show_groups(options.settings())


@group.subcommand("set")
def set_group(
    name: Annotated[str, Argument(metavar="NAME", help="The group's name; one that there is not is made.")],
    options: Printing,
    gpus: Annotated[
        str | None, Option("--gpus", metavar="N", help="GPUs that all of its jobs hold at once at most; none: any.")
    ] = None,
    gpu_hours_week: Annotated[
        str | None,
        Option("--gpu-hours-week", metavar="N", help="GPU-hours that they use in a week at most; none: any."),
    ] = None,
    max_band: Annotated[
        str | None, Option("--max-band", metavar="BAND", help="The highest band of its jobs; none: as their users may.")
    ] = None,
    shares: Annotated[
        int | None, Option("--shares", metavar="N", help="Its part of the turns, 1 by default and 1,000 at most.")
    ] = None,
    add: Annotated[list[str] | None, Option("--add", metavar="USER,…", help="Who comes in.")] = None,
    remove: Annotated[list[str] | None, Option("--remove", metavar="USER,…", help="Who leaves.")] = None,
) -> None:
    """Make a group, or change it; what is not named stays as it is. For admins.

    A job is of the first group that its user was added to, or of the one that --group names. At a cap of its group it
    waits, and gpuctl explain says who has what. A group with twice the shares of another gets twice the turns; users in
    no group have one share each.
    """
    from .group_calls import change_group

    change_group(
        options.settings(),
        name,
        gpus=gpus,
        gpu_hours_week=gpu_hours_week,
        max_band=max_band,
        shares=shares,
        add=add or [],
        remove=remove or [],
    )


@group.subcommand("rename")
def rename_group(
    name: Name, new_name: Annotated[str, Argument(metavar="NEW", help="Its new name.")], options: Printing
) -> None:
    """Give a group another name; its jobs and what it has used go on under it. For admins."""
    from .group_calls import call_group

    call_group(options.settings(), name, new_name)


@group.subcommand("remove")
def remove_group(name: Name, options: Printing) -> None:
    """Remove a group. What runs in it runs on; what waits stands as its users' of no group. For admins."""
    from .group_calls import end_group

    end_group(options.settings(), name)


@group.subcommand("members")
def list_members(name: Name, options: Printing) -> None:
    """List who is in a group, since when, and what they hold and have used of it this week."""
    from .group_calls import show_members

    show_members(options.settings(), name)
