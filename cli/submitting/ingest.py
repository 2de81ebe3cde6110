"""`ingest`: a file, for whatever takes files of its content type."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Argument, Exit, Option
from ..options import Printing
from .submit import SharedRoot


def ingest(
    options: Printing,
    file: Annotated[str, Argument(metavar="FILE", help="The file; PATH=NAME gives it another name.")],
    content_type: Annotated[
        str, Option("--content-type", metavar="TYPE", help="What it is, such as audio/mpeg; else as its name ends.")
    ] = "",
    gpu: Annotated[bool, Option("--gpu", help="It may be for a GPU, as its type says; else it is for a CPU.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would take it, and on what; upload and change nothing.")
    ] = False,
    shared_root: SharedRoot = None,
    request_id: Annotated[
        str | None,
        Option("--request-id", metavar="ID", help="Yours instead of a random one: the same id is never done twice."),
    ] = None,
) -> None:
    """Send a file to what takes its type; print the job's id, or the model's answer.

    [handlers] of the scheduler's settings names for each content type a command, which becomes a job of yours, or a
    served model, which is asked through the gateway. For instance: gpuctl ingest talk.mp3 --gpu
    """
    from .ingesting import ingest_file

    code = ingest_file(options.settings(), file, content_type, request_id, shared_root, gpu=gpu, dry_run=dry_run)
    if code:
        raise Exit(code)
