"""The spool: what an attempt has printed and the scheduler has not yet synced, in files.

Each stream is a row of segment files named `stdout.<offset of the first byte>`, 20 digits; a segment ends
where the next one starts. Beside each lie checksums of its blocks (`sums.py`), which begin where the bytes leave
the pipe. The keeper writes (`writer.py`) and is the only one that deletes; the agent reads at any offset while the
keeper writes, and checks what it reads (`layout.py`, which knows how files are named). Read `writer.py` first.

    reader = SpoolReader(view.directory)
    reader.read(Stream.STDOUT, offset, 256 * 1024)   # no data at the end; SpoolGap below what was deleted
    reader.ends()                                    # how far both streams go on disk, without a hole

Bytes are never decoded, never dropped: when there is no room the writer says so and the pipe is left unread,
which blocks the job. Nothing is fsynced: a spool must survive the agent and the keeper, not the machine. A
crash of the machine ends the attempt anyway, and what was not synced by then is reported as incomplete.
"""

from .layout import Read, SpoolGap, SpoolReader
from .writer import ReadOutcome, SpoolWriter

__all__ = ["Read", "ReadOutcome", "SpoolGap", "SpoolReader", "SpoolWriter"]
