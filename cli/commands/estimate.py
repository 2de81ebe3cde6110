"""`estimate`: how many GPUs a model's configuration needs."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from ..options import Connection, Output

Degree = str | None


def estimate(
    output: Output,
    connection: Connection,
    config: Annotated[
        str | None, Argument(metavar="[CONFIG.json]", help="The model's configuration; - reads standard input.")
    ] = None,
    model: Annotated[str | None, Option("--model", metavar="NAME", help="In its place: the model's name.")] = None,
    tp: Annotated[Degree, Option("--tp", metavar="N,…", help="Tensor parallel; of a grid the largest counts.")] = None,
    pp: Annotated[Degree, Option("--pp", metavar="N,…", help="Pipeline parallel.")] = None,
    dp: Annotated[Degree, Option("--dp", metavar="N,…", help="Data parallel.")] = None,
    cp: Annotated[Degree, Option("--cp", metavar="N,…", help="Context parallel.")] = None,
    dcp: Annotated[Degree, Option("--dcp", metavar="N,…", help="Decode context parallel.")] = None,
) -> None:
    """Say how many GPUs a model needs, and how much memory on each.

    A rule of thumb: tp × pp × max(dp, dcp, cp) GPUs, and memory by the size in the model's name. What submit --config
    asks for. For instance: gpuctl estimate --model llama-3-70b --tp 4
    """
    from ..estimating import config_of, show_estimate
    from ..settings import resolve

    degrees = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "dcp": dcp}
    show_estimate(resolve(connection, output), *config_of(config, model, degrees))
