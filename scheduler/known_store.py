"""What the data folder knows of its store, and whether the store that is opened now is that one, as new as it was.

A database that is put back, lost or mistaken for another must not go on in silence: numbers would be given again, and
what happened since would be missing without a word. So `known-store.json` says which store it was and how far it had
come. It is written at each start and stop, and every NOTED_EVERY_SECONDS while commits are made. In between
`newest-commit` is overwritten in place at each commit, before anybody hears of it. Neither waits for the disk: what a
crash of the machine takes of it makes a gap of seconds pass unnoticed, in which lineages still keep everything apart
(docs/design/lineages.md).
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file
from gpufleet.telemetry.logs import fields

from .first_start import FIRST_TOKENS
from .outputs.opening import FOLDER as OUTPUT_FOLDER
from .restore_mark import read_mark, remove_mark
from .secret_box import KEY_FILE as SECRETS_KEY_FILE
from .state.ids import JobId
from .store.reading import Began, Meta, reached
from .worker_secrets import KEY_FILE

log = logging.getLogger(__name__)

FILE = "known-store.json"
FILE_BYTES_MAX = 4096
COMMIT_FILE = "newest-commit"
COMMIT_BYTES = 96
NOTED_EVERY_SECONDS = 2.0
NUMBERS_STEP = 1_000
"""After a gap numbers of jobs go on behind the next multiple of it: what came in the last moments is not known, too."""

TERMS_STEP = 1_000
"""The same of terms: a node obeys no scheduler of a lower one than it has heard, and may have heard of later starts."""

ACCEPT = "gpuctl scheduler --accept-restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStore:
    """How far a store had come: its newest record, in which lineage and term, and the numbers that are next."""

    store_id: str
    lineage: str
    term: int
    sequence: int
    next_job: int
    next_session: int = 1


def read_known(data: Path) -> KnownStore | None:
    """The store that the folder knows; None where it knows none, or a crash of the machine has taken it."""
    known = _read_noted(data)
    newest = _read_newest(data)
    if known is None or newest is None or newest[0] != known.lineage:  # that of another start tells nothing of this one
        return known
    _, sequence, next_job, next_session = newest
    return replace(
        known,
        sequence=max(known.sequence, sequence),
        next_job=max(known.next_job, next_job),
        next_session=max(known.next_session, next_session),
    )


def _read_newest(data: Path) -> tuple[str, int, int, int] | None:
    """Lineage, newest record, next job and next session of the newest commit; None where that cannot be read."""
    try:
        with (data / COMMIT_FILE).open("rb") as file:
            lineage, *numbers = file.read(COMMIT_BYTES).decode("ascii").split()
        sequence, next_job, next_session = map(int, numbers)
    except (OSError, ValueError):
        return None
    return lineage, sequence, next_job, next_session


def _read_noted(data: Path) -> KnownStore | None:
    path = data / FILE
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(FILE_BYTES_MAX))
        numbers = {name: int(told[name]) for name in ("term", "sequence", "next_job")}
        numbers["next_session"] = int(told.get("next_session", 1))
        return KnownStore(store_id=str(told["store_id"]), lineage=str(told["lineage"]), **numbers)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        log.warning("what is known of the store cannot be read", extra=fields(file=path, why=str(problem)))
        return None


def write_known(data: Path, known: KnownStore, *, is_synced: bool = False) -> None:
    """Keep it in place of what was known before. Errors: OSError."""
    replace_file(data / FILE, json.dumps(asdict(known)).encode(), is_synced=is_synced)


def gap_of(known: KnownStore | None, found: Meta | None, starts: Sequence[Began], leftovers: Sequence[str]) -> str:
    """Why a store is not the one that the folder knows, or lacks what that had: a clause for people; empty where it is.

    `found` is None for a database without a store. `leftovers` are things in the folder that only a store leaves.
    """
    if known is None:
        if found is None and leftovers:
            return f"the database is empty, and the data folder holds what another has left ({', '.join(leftovers)})"
        return ""
    had = _had(known)
    if found is None:
        return f"the database is empty, and {had}"
    if found.store_id not in ("", known.store_id):
        return f"the database is not that of this data folder: {had}"
    if not is_known(found.record_seq, starts, known):
        return _older(found.term, known)
    return ""


def _older(term: int, known: KnownStore) -> str:
    return f"the database is older than it was: it ends in term {term}, and {_had(known)}"


def _had(known: KnownStore) -> str:
    return f"the data folder has seen one with jobs up to {known.next_job - 1:,} (term {known.term})"


def _restored(gap: str) -> GpufleetError:
    step = f"Put the newest database back; to go on without what it lacks: {ACCEPT}"
    return GpufleetError(
        Reason.STORE_RESTORED, gap, next_step=f"{step} (with the options that it is always started with)."
    )


def is_known(newest_sequence: int, starts: Sequence[Began], known: KnownStore) -> bool:
    """Whether a store holds what is known of it: the start, and all that this had stored by then."""
    end = reached(newest_sequence, starts, known.lineage)
    if end is not None:
        return known.sequence <= end
    return bool(starts) and known.term < starts[0].term  # of so many starts the oldest are not kept


class NewestCommit:
    """The file that says how far a start of the scheduler has come, overwritten in place at each commit.

    A system call each: it is to survive the end of the process, and not that of the machine.
    """

    def __init__(self, data: Path, lineage: str) -> None:
        self._lineage = lineage
        self._fd = os.open(data / COMMIT_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._has_failed = False

    def note(self, sequence: int, next_job: int, next_session: int) -> None:
        """Take in a commit. That it cannot be written stops nothing."""
        text = f"{self._lineage} {sequence} {next_job} {next_session}\n"
        try:
            os.pwrite(self._fd, text.ljust(COMMIT_BYTES).encode("ascii"), 0)
            self._has_failed = False
        except OSError as problem:
            if not self._has_failed:
                log.warning("the newest commit cannot be noted", extra=fields(file=COMMIT_FILE, why=str(problem)))
            self._has_failed = True

    def close(self) -> None:
        """Leave the file as it is."""
        os.close(self._fd)


class Memory:
    """What one data folder knows of its store. `accepts`: a person has said to go on with whatever store there is."""

    def __init__(self, data: Path, *, accepts: bool = False) -> None:
        self._data = data
        self._accepts = accepts
        self._written: KnownStore | None = None
        self._has_mark = False
        self._starts: Sequence[Began] = ()
        self.contradicted = asyncio.Event()
        """Set once it came out that the store lacks history: nothing may be decided by it any more."""
        self.contradiction: GpufleetError | None = None
        self.gap = ""
        self.jobs_above = JobId(0)
        """Up to where numbers of jobs may have been given, where there is a gap."""
        self.sessions_above = 0
        """The same of sessions."""

    def admit(self, found: Meta | None, starts: Sequence[Began]) -> int:
        """Refuse a store that is not the one that is known, as new as it was, or that may be half of one.

        Answers the term above which this start's is to be. Errors: STORE_RESTORED, RESTORE_UNFINISHED.
        """
        known, mark = read_known(self._data), read_mark(self._data)
        if mark is not None and not mark.is_finished:
            raise GpufleetError(Reason.RESTORE_UNFINISHED, "a restore into this data folder has not come to its end")
        self._has_mark = mark is not None
        restored = mark if mark is not None and found is not None and mark.is_of(found.store_id, found.term) else None
        self.gap = restored.gap if restored is not None else gap_of(known, found, starts, self._leftovers())
        if not self.gap:
            # Who says that it was put back may know of nodes that have heard of more than the folder.
            return _terms_above(found.term) if self._accepts and found is not None else 0
        if not self._accepts and restored is None:  # who restores a store has accepted it
            raise _restored(self.gap)
        self.jobs_above = jobs_above(known, newest_output(self._data))
        if restored is not None:
            self.jobs_above = max(self.jobs_above, JobId(restored.jobs_above))
        self.sessions_above = max(sessions_above(known, 0), 0 if restored is None else restored.sessions_above)
        log.warning("a store with a gap was accepted", extra=fields(gap=self.gap, jobs_go_on_above=self.jobs_above))
        log.warning("tokens, credentials and secrets are as the store has them: what was revoked since is good again")
        return _terms_above(known.term if known is not None else 0, found.term if found is not None else 0)

    def check(self, found: Meta, starts: Sequence[Began]) -> None:
        """Refuse to follow another store, or one that lacks what the folder knows of. Errors: STORE_RESTORED."""
        gap, mark = gap_of(read_known(self._data), found, starts, ()), read_mark(self._data)
        is_restored_here = mark is not None and mark.is_of(found.store_id, found.term)
        if gap and not (self._accepts or is_restored_here):
            raise _restored(gap)

    def opened(self, starts: Sequence[Began]) -> None:
        """The store was admitted, and these are its starts, the present one the last."""
        self._starts = tuple(starts)

    def has(self, told: KnownStore, newest: KnownStore) -> bool:
        """Whether what somebody was told of a store is in this one, which is as new as `newest`."""
        return told.store_id == newest.store_id and is_known(newest.sequence, self._starts, told)

    def contradict(self, told: KnownStore, newest: KnownStore) -> GpufleetError:
        """The store lacks what a scheduler told of it: remember that in the place of what the folder knew.

        From here on nothing else is noted, so that the next start says the same. Answers what to say.
        """
        if self.contradiction is None:
            self.contradiction = _restored(_older(newest.term, told))
            try:
                write_known(self._data, told)
            except OSError as problem:
                log.error("what is known of the store cannot be written", extra=fields(why=str(problem)))
            self.contradicted.set()
        return self.contradiction

    def note(self, known: KnownStore, *, is_synced: bool = False) -> None:
        """Remember how far the store is now. That it cannot be written stops nothing."""
        if self.contradiction is not None or (known == self._written and not is_synced):
            return
        try:
            write_known(self._data, known, is_synced=is_synced or self._has_mark)
            self._written = known
            if self._has_mark:
                remove_mark(self._data)
                self._has_mark = False
        except OSError as problem:
            log.warning("what is known of the store cannot be written", extra=fields(why=str(problem)))

    async def run(self, newest: Callable[[], KnownStore | None]) -> None:
        """Note how far the store is, again and again."""
        while True:
            await asyncio.sleep(NOTED_EVERY_SECONDS)
            known = newest()
            if known is not None:
                await asyncio.to_thread(self.note, known)

    def _leftovers(self) -> list[str]:
        names = [KEY_FILE, SECRETS_KEY_FILE, *(f"{name}.token" for name, _ in FIRST_TOKENS)]
        found = [name for name in names if (self._data / name).exists()]
        return [*found, OUTPUT_FOLDER] if newest_output(self._data) else found


def newest_output(data: Path) -> int:
    """The highest number of a job whose output is in a data folder; 0 for none."""
    folders = (data / OUTPUT_FOLDER).glob("*/*")
    return max((int(folder.name) for folder in folders if folder.name.isdecimal()), default=0)


def jobs_above(known: KnownStore | None, *given: int) -> JobId:
    """Up to where numbers of jobs may have been given: a multiple of NUMBERS_STEP above all that are known of."""
    highest = max(known.next_job - 1 if known is not None else 0, *given)
    return JobId(_behind(highest))


def sessions_above(known: KnownStore | None, *given: int) -> int:
    """The same of sessions, as far as they are known of."""
    return _behind(max(known.next_session - 1 if known is not None else 0, *given))


def _behind(highest: int) -> int:
    return (highest // NUMBERS_STEP + 1) * NUMBERS_STEP


def _terms_above(*given: int) -> int:
    return (max(given) // TERMS_STEP + 1) * TERMS_STEP
