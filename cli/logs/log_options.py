"""Which output `logs` is to show, as it was typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..declaring import Option


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Which output is wanted, as it was typed."""

    follow: Annotated[bool, Option("-f", "--follow", help="Stay until the job ends; Ctrl-C leaves.")] = False
    tail: Annotated[
        int | None, Option("--tail", metavar="N", min=0, help="Only the newest N lines, and what follows.")
    ] = None
    since: Annotated[
        str | None,
        Option("--since", metavar="TIME", help="Only what is newer: 10m, or 2026-01-31T12:00:00+01:00."),
    ] = None
    rank: Annotated[int | None, Option("--rank", metavar="N", min=0, help="Only this rank of the job.")] = None
    attempt: Annotated[
        int | None,
        Option("--attempt", metavar="N", min=1, help="The output of attempt N, counted from 1.  [default: the newest]"),
    ] = None
    all_attempts: Annotated[bool, Option("--all-attempts", help="The output of every attempt, the oldest first.")] = (
        False
    )
    setup: Annotated[bool, Option("--setup", help="What made the job's environment, instead of its output.")] = False
    stdout: Annotated[bool, Option("--stdout", help="Only standard output.")] = False
    stderr: Annotated[bool, Option("--stderr", help="Only standard error.")] = False
    raw: Annotated[
        bool, Option("--raw", help="The job's bytes and nothing else, on a terminal too: no prefix, no remark.")
    ] = False
    model: Annotated[str, Option("--model", metavar="NAME", help="The output of a model's workers.")] = ""
    all_workers: Annotated[bool, Option("--all-workers", help="The output of the workers of all models.")] = False
    program: Annotated[
        str,
        Option(
            "--program",
            metavar="PROGRAM",
            help="The log of a program: scheduler, agent:NODE, or gateway, on its own machine.",
        ),
    ] = ""
