"""`upgrade --check`: what another version would change, before anything is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..declaring import Exit, Option
from ..options import Printing


def upgrade(
    options: Printing,
    check: Annotated[bool, Option("--check", help="Say what would change, and change nothing.")] = False,
    to: Annotated[
        Path | None,
        Option("--to", metavar="WHEEL", help="A gpufleet-VERSION.whl; by default the version of this gpuctl."),
    ] = None,
) -> None:
    """Say what another version would change: the database, settings, and whether the fleet's programs go with it.

    Programs of one minor version and the next work together, so that scheduler and agents may be upgraded one after the
    other. It exits with 1 where something is in the way. gpufleet itself is upgraded by what installed it, such as
    sudo pipx upgrade --global gpufleet, and a restart of each service.
    """
    from gpufleet.errors import invalid

    from .upgrade_check import check_upgrade

    if not check:
        raise invalid(
            "--check",
            "gpuctl says what an upgrade changes, and leaves it to what installed gpufleet",
            next_step="Type: gpuctl upgrade --check",
        )
    raise Exit(check_upgrade(options.settings(), to))
