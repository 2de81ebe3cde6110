"""`audit`: who called what, and who was refused."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Option
from ..options import Printing


def audit(
    options: Printing,
    by: Annotated[str, Option("--by", "--user", metavar="USER", help="Only what this user did; me is you.")] = "",
    call: Annotated[str, Option("--call", metavar="CALL", help="Only this call, such as Submit.")] = "",
    on: Annotated[
        str,
        Option(
            "--on", metavar="KIND:NAME", help="Only what was done to this: job:41, node:n1, token:ab12, model:echo."
        ),
    ] = "",
    since: Annotated[
        str | None, Option("--since", metavar="TIME", help="From then on: 12h, 30d, or 2026-01-31T12:00:00+01:00.")
    ] = None,
    refused: Annotated[bool, Option("--refused", help="Only what was refused, or failed.")] = False,
    limit: Annotated[int, Option("-n", "--limit", metavar="N", min=1, help="The newest N entries at most.")] = 50,
    follow: Annotated[bool, Option("-f", "--follow", help="Stay, and show what comes; Ctrl-C leaves.")] = False,
) -> None:
    """Show who called what, on what, from where, and how it ended.

    The newest stands last. An admin sees everything. Others see what they did themselves, and with --on job:ID all that
    was done to a job of theirs. Calls that only read are there where they were refused. x12 stands for twelve calls
    that were counted.
    """
    from .audit_calls import AuditFilter, show_audit

    show_audit(options.settings(), AuditFilter(by, call, on, since, refused, limit, follow))
