"""--mount: what of a node a container shows, from HOST[:PATH][:ro] and back."""

from __future__ import annotations

from gpufleet.errors import invalid
from gpufleet.v1 import job_pb2 as pb

READ_ONLY, READ_WRITE = "ro", "rw"
HOW = "Write it as /data/sets, /data/sets:/data or /data/sets:/data:ro, with absolute paths."


def mount(option: str, text: str) -> pb.ContainerMount:
    """Read `/data`, `/data:ro`, `/data:/sets` or `/data:/sets:ro`. Raises INVALID_ARGUMENT with the option."""
    source, *rest = text.split(":")
    how = rest.pop() if rest and rest[-1] in (READ_ONLY, READ_WRITE) else READ_WRITE
    if len(rest) > 1 or not source.startswith("/") or (rest and not rest[0].startswith("/")):
        raise invalid(option, f'"{text}" is not HOST[:PATH][:ro]', next_step=HOW)
    return pb.ContainerMount(source=source, target=rest[0] if rest else source, is_read_only=how == READ_ONLY)


def mount_text(shown: pb.ContainerMount) -> str:
    """The option's value that says the same."""
    place = "" if shown.target == shown.source else f":{shown.target}"
    return f"{shown.source}{place}{f':{READ_ONLY}' if shown.is_read_only else ''}"
