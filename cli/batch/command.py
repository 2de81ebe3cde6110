"""`batch`: every row of a file, or every file of a folder, through a served model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..declaring import Argument, Exit, Option
from ..options import Connection
from .job_options import BatchJobOptions


def batch(
    options: Connection,
    source: Annotated[Path, Argument(metavar="FILE|FOLDER", help="Lines of JSON, or a folder of files.")],
    to: Annotated[Path, Option("-o", "--to", metavar="FILE", help="Where the answers go, a line of JSON a row.")],
    model: Annotated[str, Option("--model", metavar="NAME", help="The served model that is asked.")],
    address: Annotated[
        list[str] | None,
        Option("--address", metavar="HOST:PORT", help="A worker to ask without the gateway; repeatable."),
    ] = None,
    gateway: Annotated[
        str | None, Option("--gateway", metavar="URL", help="The gateway; by default the one on this machine.")
    ] = None,
    batch_size: Annotated[
        int | None, Option("--batch-size", metavar="N", min=1, help="Rows of a request at most, 32 by default.")
    ] = None,
    gpu_mode: Annotated[
        str | None,
        Option(
            "--gpu-mode",
            metavar="MODE",
            help="Take a GPU, or go to the model's CPU model: required, preferred, never or auto.",
        ),
    ] = None,
    content_type: Annotated[
        str | None, Option("--content-type", metavar="TYPE", help="What the items are, by which auto decides.")
    ] = None,
    as_they_come: Annotated[
        bool, Option("--as-they-come", help="Write answers as they come; else in the order of the rows.")
    ] = False,
    *,
    job: BatchJobOptions,
) -> None:
    """Ask a model about every row of a file.

    A row is a line of a JSONL file, or a file of a folder. Each gets one line of answers: its output, or an error that
    is its own. What was answered already is not asked again: stopped and started again, the command goes on where it
    was. Exit code 1 says that rows have an error. With --job it runs on a node, as a job of yours, and what you close
    meanwhile does not matter; both paths must be there, too.

    What else the client has to set is in GPUFLEET_INFERENCE_… variables (docs/inference-client.md).
    For instance: gpuctl batch photos/ --model faces -o faces.jsonl
    """
    from .given import GpuChoice, own_job, settings_given

    job.check_unsaid()
    choice = GpuChoice(gpu_mode, content_type)
    if job.job:
        from .job import Batch, submit_batch

        settings = options.settings()
        given = settings_given(settings, model, address or [], gateway, batch_size, choice=choice)
        submit_batch(settings, Batch(source=source, to=to, model=model, as_they_come=as_they_come), given, job)
        return
    from .program import run_batch

    given = settings_given(options.settings(jobs=own_job()), model, address or [], gateway, batch_size, choice=choice)
    raise Exit(run_batch(source, to, given, as_they_come=as_they_come))
