"""Answers and lists in the form that was asked for: every reading command prints its own by this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message
from gpufleet.v1 import node_pb2, scheduler_pb2

from . import screen
from .render.table import Look
from .render.terminal_text import for_terminal


def message_object(message: Message) -> dict[str, Any]:
    """The message as what becomes JSON: the same that the gateway's HTTP API answers."""
    from gpufleet.net import json_messages  # tables need none of it

    return json_messages.message_object(message)


def print_object(value: object, form: str) -> None:
    """Print it as JSON: over several lines for `json`, on one for `jsonl`."""
    import json

    text = json.dumps(value, indent=2 if form == "json" else None, ensure_ascii=False)
    # Names and paths may hold what the terminal's encoding lacks; JSON is UTF-8 whatever the locale says.
    data = text.encode(errors="replace")
    sys.stdout.buffer.write((for_terminal(data) if sys.stdout.isatty() else data) + b"\n")
    sys.stdout.buffer.flush()


def print_message(message: Message, form: str) -> None:
    """Print it as JSON in the field names of the protos: what grpcurl shows, with every field present."""
    print_object(message_object(message), form)


M = TypeVar("M", bound=Message)


def print_answer(form: str, message: Message, name: object, lines: Callable[[Look], Iterable[str]]) -> None:
    """Print one answer: the message as JSON, the name alone, or `lines` for people."""
    if form in ("json", "jsonl"):
        print_message(message, form)
    else:
        screen.print_lines([str(name)] if form == "name" else lines(screen.look(form)))


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
