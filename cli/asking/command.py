"""`infer`: ask a served model about files, a text or a value."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..completion import complete_models
from ..declaring import Argument, Exit, Option
from ..options import Printing

Model = Annotated[
    str, Argument(metavar="MODEL", help="The served model that is asked.", autocompletion=complete_models)
]
Address = Annotated[
    list[str] | None,
    Option("--address", metavar="HOST:PORT", help="A worker to ask without the gateway; repeatable."),
]
Gateway = Annotated[
    str | None, Option("--gateway", metavar="URL", help="The gateway; by default the one on this machine.")
]


def infer(
    options: Printing,
    model: Model,
    files: Annotated[
        list[Path] | None, Argument(metavar="FILE…", help="Files or folders; - is standard input.")
    ] = None,
    text: Annotated[list[str] | None, Option("--text", metavar="TEXT", help="Ask about this text; repeatable.")] = None,
    item: Annotated[
        list[str] | None, Option("--item", metavar="JSON", help="Ask about this value of JSON; repeatable.")
    ] = None,
    read_as: Annotated[
        str | None,
        Option(
            "--as",
            metavar="KIND",
            help="What files hold: bytes, text, json, or jsonl, an item a line; else as their names say.",
        ),
    ] = None,
    address: Address = None,
    gateway: Gateway = None,
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
) -> None:
    """Ask a served model about files, a text or a value.

    A file is an item, its bytes; one that ends in .json is a value, one that ends in .jsonl has an item in each line,
    and a folder in each file. Prints an answer a line, in their order, and errors of single items on stderr; then the
    exit code is 1. With -o jsonl answers and errors stand in one line each, as gpuctl batch writes them.

    What else the client has to set is in GPUFLEET_INFERENCE_… variables (docs/inference-client.md).
    For instance: gpuctl infer faces photo.jpg
    """
    from ..batch.given import GpuChoice, own_job, settings_given
    from .items import items_of
    from .program import run_infer

    items = items_of(files or [], text or [], item or [], read_as)
    settings = options.settings(jobs=own_job())
    given = settings_given(settings, model, address or [], gateway, None, choice=GpuChoice(gpu_mode, content_type))
    raise Exit(run_infer(items, given, settings.format))
