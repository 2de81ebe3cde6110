"""What is written down about an attempt, at once: a file of JSON lines in its directory.

    1  before anything is started: key, keeper, boot        (a keeper killed now leaves evidence, and the
    2  when the process runs: pid, start ticks, pipes        process carries its key in its environment)
    3  when it has ended: the end

The directory appears with line 1 already in it, and a second one of that name cannot: this is what makes a
launch happen once, whichever keeper is asked. A record must survive the keeper, not the machine, so nothing
waits for the disk: after a reboot no attempt runs, and the new boot id alone ends them all. What a crash of the
machine leaves of a record (all of it, nothing, an empty file) is therefore never wrong; it only must be readable.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gpufleet.jobs.runs import RankKey

from ..core.launch import Container
from ..core.outcome import AttemptEnd, AttemptPhase, AttemptView
from ..spool.layout import ends_on_disk, starts_on_disk
from .frames import to_text
from .linux import boot_id
from .state_dir import StateDir
from .values import Json, container_from, end_from, to_json

FILE = "record"
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One attempt as written down; the pid is None between the lines 1 and 2."""

    key: RankKey
    keeper_id: str
    boot_id: str
    note: str
    is_isolated: bool = False
    container: Container | None = None
    pid: int | None = None
    start_ticks: int | None = None
    started_us: int | None = None
    pipe_ids: tuple[str, ...] = ()
    end: AttemptEnd | None = None


SPARES_MAX = 64
"""Empty directories kept for attempts to come: as many as are forgotten together, about."""


class Spares:
    """Empty directories of attempts that are forgotten, for those that come.

    To make and to remove one for each short job waits for the file system's journal, which the commits of a scheduler
    on the same disk keep busy: a quarter of a millisecond each time, in which nothing else can be started.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._empty: list[Path] = []

    def take(self) -> Path:
        """An empty directory of nobody; on the file system of `folder`. OSError when none can be made."""
        if self._empty:
            return self._empty.pop()
        self._made += 1
        made = self._folder / f"spare-{self._made}"
        made.mkdir(mode=0o700)
        return made

    def give(self, directory: Path) -> None:
        """Keep a directory that was just emptied, or remove it where there are enough."""
        if len(self._empty) >= SPARES_MAX:
            directory.rmdir()
            return
        self._made += 1
        spare = self._folder / f"spare-{self._made}"
        directory.rename(spare)
        self._empty.append(spare)


class RecordFile:
    """The record of an attempt, held open for its lines to come: where its directory is moved, it goes along."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fd: int | None = os.open(f"{directory}/{FILE}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, line: Json) -> None:
        """Write one line down; on an OSError (a full disk) nothing of it is there."""
        assert self._fd is not None, "nothing is written behind the end"
        data = to_text(line).encode("ascii") + b"\n"
        written = os.write(self._fd, data)
        if written != len(data):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def move(self, directory: Path) -> None:
        """Give its directory this name. OSError when there is one of that name that is not empty."""
        self.directory.rename(directory)
        self.directory = directory

    def close(self) -> None:
        """Write no more; again: nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def claim(state: StateDir, spares: Spares, record: Record) -> RecordFile | None:
    """Make the attempt's directory with line 1 in it; None when there is one. OSError when it cannot be."""
    first: Json = {"key": record.key.name, "keeper_id": record.keeper_id, "boot_id": record.boot_id}
    first |= {"note": record.note, "is_isolated": record.is_isolated}
    if record.container is not None:
        first["container"] = to_json(record.container)
    staging = spares.take()
    file: RecordFile | None = None
    try:
        file = RecordFile(staging)
        file.append(first)
        file.move(state.attempt(record.key))
    except OSError as error:
        if file is not None:
            file.close()
        shutil.rmtree(staging, ignore_errors=True)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return None
        raise
    return file


def started_line(*, pid: int, start_ticks: int, started_us: int, pipe_ids: Iterable[str]) -> Json:
    """Answer line 2."""
    return {"pid": pid, "start_ticks": start_ticks, "started_us": started_us, "pipe_ids": sorted(pipe_ids)}


def ended_line(end: AttemptEnd) -> Json:
    """Answer line 3."""
    return {"end": to_json(end)}


def append(directory: Path, line: Json) -> None:
    """Write one line into a record that nobody holds open; on an OSError (a full disk) nothing of it is there."""
    with contextlib.closing(RecordFile(directory)) as file:
        file.append(line)


def read(directory: Path) -> Record | None:
    """Read an attempt's record; None when its directory holds none (it is being forgotten)."""
    return _read_file(directory / FILE, directory.name)


def is_readable(line: bytes, first_of: RankKey | None) -> bool:
    """Whether a line of a record says what it must: the first that of this attempt, None for one behind it."""
    try:
        said = json.loads(line)
        if first_of is not None:
            return _first(said).key == first_of
        _with_line(Record(key=RankKey.parse("1.1.0"), keeper_id="", boot_id="", note=""), said)
    except UNREADABLE:
        return False
    return True


def bury(state: StateDir, key: RankKey, spares: Spares | None = None) -> None:
    """Forget an attempt: its spool is deleted, its record becomes its tombstone. Again: finishes what was begun."""
    directory, tombstone = state.attempt(key), state.tombstone(key)
    if tombstone.exists():
        shutil.rmtree(directory, ignore_errors=True)
        return
    for name in os.listdir(directory):  # noqa: PTH208 - names alone, of thousands of attempts a minute
        if name != FILE:
            (directory / name).unlink()
    (directory / FILE).rename(tombstone)
    with contextlib.suppress(OSError):  # what is left of it, the next start of a keeper takes away
        if spares is None:
            directory.rmdir()
        else:
            spares.give(directory)


def all_records(state: StateDir) -> list[Record]:
    """Read every record of attempts that are not forgotten; an interrupted forgetting is finished."""
    found: list[Record] = []
    for directory in state.attempts.iterdir():
        record = read(directory)
        if record is None:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            found.append(record)
    return found


def view_on_disk(state: StateDir, key: RankKey) -> AttemptView | None:
    """Answer what is written down about an attempt, by whichever keeper; None: it was never here."""
    buried = _read_file(state.tombstone(key), key.name)
    if buried is not None:
        return view_of(buried, AttemptPhase.FORGOTTEN, state)
    record = read(state.attempt(key))
    return None if record is None else view_of(record, phase_of(record), state)


def tombstones_on_disk(state: StateDir) -> tuple[AttemptView, ...]:
    """Answer what is left of forgotten attempts, the newest first."""
    with os.scandir(state.ended) as entries:
        names = [name for _, name in sorted(((each.stat().st_ctime_ns, each.name) for each in entries), reverse=True)]
    found = (_read_file(state.ended / name, name) for name in names)
    return tuple(view_of(record, AttemptPhase.FORGOTTEN, state) for record in found if record is not None)


def phase_of(record: Record) -> AttemptPhase:
    """Answer where an attempt stands as far as its record tells."""
    if record.end is None:
        return AttemptPhase.RUNNING
    return AttemptPhase.ENDED if record.end.loss is None else AttemptPhase.LOST


def view_of(record: Record, phase: AttemptPhase, state: StateDir) -> AttemptView:
    """Answer an attempt as its record and its spool show it."""
    directory = state.attempt(record.key)
    if record.end is not None:
        ends = record.end.output_ends
    else:
        ends = ends_on_disk(directory)
    return AttemptView(
        key=record.key,
        phase=phase,
        keeper_id=record.keeper_id,
        directory=str(directory),
        pid=record.pid,
        # The clock began anew with this boot: what started before it did so at its zero, or earlier.
        started_us=record.started_us if record.started_us is None or record.boot_id == boot_id() else 0,
        stop_cause=record.end.stop_cause if record.end is not None else None,
        output_starts=ends if phase is AttemptPhase.FORGOTTEN else starts_on_disk(directory),
        output_ends=ends,
        note=record.note,
        end=record.end,
    )


def _read_file(path: Path, name: str) -> Record | None:
    """Read the record of the attempt of this name, as far as it can be read; None when there is none."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    lines = data[: data.rfind(b"\n") + 1].splitlines()  # the last line may be just being written
    try:
        record = _first(json.loads(lines[0]))
    except (IndexError, *UNREADABLE):
        return _record_of_a_lost_boot(name)
    for line in lines[1:]:
        try:
            record = _with_line(record, json.loads(line))
        except UNREADABLE:
            break
    return record


def _first(line: Json) -> Record:
    return Record(
        key=RankKey.parse(line["key"]),
        keeper_id=line["keeper_id"],
        boot_id=line["boot_id"],
        note=line["note"],
        is_isolated=bool(line.get("is_isolated")),
        container=container_from(line.get("container")),
    )


def _with_line(record: Record, line: Json) -> Record:
    if "end" in line:
        return replace(record, end=end_from(line["end"]))
    return replace(record, **{**line, "pipe_ids": tuple(line["pipe_ids"])})


def _record_of_a_lost_boot(name: str) -> Record | None:
    """Answer what a record says that a crash of the machine left empty or in shreds: it belongs to no boot of now."""
    try:
        key = RankKey.parse(name)
    except ValueError:
        return None
    return Record(key=key, keeper_id="", boot_id="", note="")
