"""How the files of a spool are named."""

import contextlib
import os
from pathlib import Path

from ..core.offsets import Segment
from ..core.outcome import Offsets, Stream


def segment_path(directory: Path, stream: Stream, start: int) -> Path:
    """Answer the file that holds a stream's bytes from `start` on."""
    return directory / f"{stream.value}.{start:020d}"


def segments_on_disk(directory: Path, stream: Stream) -> list[Segment]:
    """List a stream's segments in order, as far as they follow each other without a hole; none when it is gone."""
    prefix = f"{stream.value}."
    found: list[Segment] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                suffix = entry.name.removeprefix(prefix)
                if suffix != entry.name and suffix.isdecimal():
                    start = int(suffix)
                    with contextlib.suppress(FileNotFoundError):  # the keeper deletes what is synced at any moment
                        found.append(Segment(start, start + entry.stat().st_size))
    except FileNotFoundError:
        return []
    found.sort(key=lambda segment: segment.start)
    for index in range(1, len(found)):
        if found[index].start != found[index - 1].end:
            return found[:index]
    return found


def starts_on_disk(directory: Path) -> Offsets:
    """Answer from where on both streams are on disk; 0 where nothing was ever written."""
    starts = [segments[0].start if segments else 0 for segments in (segments_on_disk(directory, s) for s in Stream)]
    return Offsets(*starts)


def ends_on_disk(directory: Path) -> Offsets:
    """Answer up to where both streams are on disk without a hole; 0 where there is nothing."""
    ends = [segments[-1].end if segments else 0 for segments in (segments_on_disk(directory, s) for s in Stream)]
    return Offsets(*ends)
