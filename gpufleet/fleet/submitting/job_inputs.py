"""`--input 41:out/**=data`: files that another job left, as they are typed and shown."""

from __future__ import annotations

import re

from gpufleet.errors import invalid
from gpufleet.text.cleaning import is_utf8
from gpufleet.v1 import job_pb2 as pb

HOW = "Write it as 41:'out/**', or as 41.3:'*.pt'=models for an item and a folder of that name."
_JOB = re.compile(r"([1-9]\d{0,18})(?:\.(\d{1,10}))?")


def job_input(option: str, text: str) -> pb.JobInput:
    """Read `41:out/**`, `41.3:*.pt` or `41:out/**=data`. Raises INVALID_ARGUMENT."""
    which, colon, rest = text.partition(":")
    read = _JOB.fullmatch(which)
    if not is_utf8(text):
        raise invalid(option, "it holds bytes that are not UTF-8", next_step=HOW)
    if read is None or int(read[1]) >= 2**63 or int(read[2] or 0) >= 2**31:
        raise invalid(option, f'"{text[:200]}" does not begin with a job id', next_step=HOW)
    pattern, equals, name = rest.rpartition("=")
    pattern, name = (pattern, name) if equals else (rest, "")
    if not colon or not pattern or (equals and not name):
        raise invalid(option, f'"{text[:200]}" is not JOB:PATTERN[=NAME]', next_step=HOW)
    index = int(read[2]) if read[2] else None
    return pb.JobInput(job_id=int(read[1]), array_index=index, pattern=pattern, name=name)


def job_input_text(given: pb.JobInput) -> str:
    """The option's value that says the same."""
    which = f"{given.job_id}.{given.array_index}" if given.HasField("array_index") else str(given.job_id)
    return f"{which}:{given.pattern}{f'={given.name}' if given.name else ''}"
