"""`providers`: what models can compute with on this machine."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Exit, Option


def providers(
    python: Annotated[
        str,
        Option(
            "--python",
            metavar="PATH",
            help="The interpreter to look into, as serve is given it; the one of this gpuctl.",
        ),
    ] = "",
    timeout: Annotated[
        str, Option("--timeout", metavar="TIME", help="The longest wait for one answer, 1m by default.")
    ] = "1m",
    output: Annotated[
        str | None,
        Option(
            "-o",
            "--output",
            metavar="FORMAT",
            help="table, wide, json, jsonl or name; else GPUCTL_OUTPUT; table by default.",
        ),
    ] = None,
) -> None:
    """Show what models can compute with here, tried for real.

    That is torch, ONNX Runtime, and each GPU; no scheduler is asked. Each is tried with a small model in a process of
    its own: a driver that crashes or hangs is told as what it is. What is missing is told with what installs it. Exits
    with 1 where nothing computes.
    On another node, with a GPU: gpuctl run --nodelist NODE --gpus 1 -- gpuctl providers
    """
    from .provider_calls import show_providers

    raise Exit(show_providers(python, timeout, output))
