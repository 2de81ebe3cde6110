"""What ranks left: which manifest each of them brought, and what is not in it. Contents are blobs of the job's user.

    JOB/KEY.json     a note of one rank; durable once all of its contents are stored

One that is there is never changed; it goes when it is older than [files] keep_results, and its contents with it. So
what was read lately need not be read again.
"""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpufleet.jobs.files import is_digest

from ..state.ids import JobId, RankKey, UserName
from ..state.units import SECOND, Instant
from .place import Place

EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
"""Of a manifest without a file."""
MISSING_CHARS_MAX = 300
"""Of the sentence about what is missing."""
KNOWN_MAX = 20_000
"""Notes of a place that is far away that are kept in mind."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a rank left: whose it is, the digest of its manifest, what is not in that; `is_new`: it came just now.
    `stored_at` is known of what was read."""

    user: UserName
    digest: str
    problems: tuple[str, ...]
    is_new: bool = False
    stored_at: Instant | None = field(default=None, compare=False)

    @property
    def is_nothing(self) -> bool:
        """Whether it left no file that was chosen, and nothing is missing."""
        return self.digest == EMPTY_DIGEST and not self.problems


def missing_words(problems: tuple[str, ...]) -> str:
    """The first of what is missing, and how many more there are; empty where nothing is."""
    if not problems:
        return ""
    first, *others = problems
    more = f", and {len(others):,} more" if others else ""
    return f"not among it: {first[:MISSING_CHARS_MAX]}{more}"


class Results:
    """Every method reads or writes notes, and may be called from any thread. Errors: STORE_UNAVAILABLE."""

    def __init__(self, place: Place, wall_clock: Callable[[], float] = time.time) -> None:
        self._place = place
        self._now = wall_clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Stored] = OrderedDict()
        self.trouble: dict[RankKey, str] = {}
        """Why what a rank left could not be taken when it was sent last; of ranks that still bring theirs."""

    def add(self, key: RankKey, stored: Stored) -> None:
        """Make durable what a rank left."""
        content = json.dumps({"user": stored.user, "digest": stored.digest, "problems": stored.problems})
        self._place.write_note(_name(key), content.encode())

    def of(self, key: RankKey) -> Stored | None:
        """What a rank left; None where it has brought nothing yet, or it was dropped."""
        return self._read(_name(key))

    def known(self, key: RankKey) -> Stored | None:
        """What was read of a rank before, or nothing; a place that is far away is not asked."""
        with self._lock:
            return self._known.get(_name(key))

    def all(self) -> Iterator[Stored]:
        """What every rank left."""
        for note in self._place.notes():
            if (found := self._read(note.name)) is not None:
                yield found

    def prune(self, kept_s: float, needed: Callable[[JobId], bool] = lambda job: False, needed_s: float = 0.0) -> int:
        """Forget what is older, and of jobs whose files are needed what is older by so much more; how many."""
        before, dropped = self._now() - kept_s, 0
        for note in self._place.notes():
            if note.at < before and not (note.at >= before - needed_s and needed(_job_of(note.name))):
                self._place.remove_note(note.name)
                with self._lock:
                    self._known.pop(note.name, None)
                dropped += 1
        return dropped

    def _read(self, name: str) -> Stored | None:
        with self._lock:
            known = self._known.get(name)
        if known is not None and self._place.is_remote:
            return known
        note = self._place.read_note(name)
        found = None if note is None else _stored_of(*note)
        if found is not None and self._place.is_remote:
            with self._lock:
                self._known[name] = found
                while len(self._known) > KNOWN_MAX:
                    self._known.popitem(last=False)
        return found


def _name(key: RankKey) -> str:
    return f"{JobId(key.job)}/{key.name}.json"


def _job_of(name: str) -> JobId:
    """The job that a note is of; 0 where the name says none."""
    job = name.partition("/")[0]
    return JobId(int(job) if job.isdigit() else 0)


def _stored_of(content: bytes, at: float) -> Stored | None:
    try:
        found = json.loads(content)
        problems = tuple(map(str, found["problems"]))
        stored = Stored(UserName(found["user"]), found["digest"], problems, stored_at=Instant(round(at * SECOND)))
    except (ValueError, KeyError, TypeError):
        return None
    return stored if is_digest(stored.digest) else None
