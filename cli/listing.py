"""A list in the form that was asked for: every reading command prints its own by this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from gpufleet.v1 import node_pb2, scheduler_pb2

from . import screen
from .render.as_json import print_message
from .render.table import Look

M = TypeVar("M", bound=Message)


def print_list(
    form: str,
    items: Sequence[M],
    *,
    whole: Message,
    name: Callable[[M], str],
    lines: Callable[[Look], Iterable[str]],
) -> None:
    """Print them: `json` is `whole`, the answer that holds them; `name` a name a line; tables are drawn by `lines`."""
    match form:
        case "json":
            print_message(whole, "json")
        case "jsonl":
            for item in items:
                print_message(item, "jsonl")
        case "name":
            screen.print_lines(name(item) for item in items)
        case _:
            screen.print_lines(lines(screen.look(form)))


def print_devices(form: str, devices: Sequence[node_pb2.NodeDevice], lines: Callable[[Look], Iterable[str]]) -> None:
    """Print devices of several nodes; by name they are NODE:INDEX."""
    whole = scheduler_pb2.ListDevicesResponse(devices=devices)
    print_list(form, devices, whole=whole, name=lambda each: f"{each.node}:{each.device.index}", lines=lines)
