"""What a restore leaves in the data folder for the next start: which store it put there, and how far it came.

`restored.json` is written before anything is changed, and again when all is. While it says that a restore has not come
to its end, a start is refused: half of a store must not be served. Once it has, a start takes that store as one that a
person accepted, with the numbers of jobs above all that may have been given, and removes the mark.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file

FILE = "restored.json"
FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMark:
    """Which store, as the copy has it: its id, and how far that had come.

    `gap` is why it lacks jobs that there were, a clause for people, empty where it lacks none; their numbers may go up
    to `jobs_above`, those of sessions to `sessions_above`. `stamp` is behind the names of what was kept aside.
    `is_finished`: all of it is in its place.
    """

    store_id: str
    lineage: str
    term: int
    sequence: int
    gap: str
    jobs_above: int
    sessions_above: int
    stamp: str
    is_finished: bool

    def is_of(self, store_id: str, term: int) -> bool:
        """Whether a store is that one, also after starts on it."""
        return self.store_id == store_id and self.term <= term


def read_mark(data: Path) -> RestoreMark | None:
    """What the folder says of a restore; None where there was none. Errors: RESTORE_UNFINISHED, of a damaged file."""
    path = data / FILE
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(FILE_BYTES_MAX))
        mark = RestoreMark(**told)
        kinds = RestoreMark.__annotations__
        if any(type(value) is not kinds[name] for name, value in asdict(mark).items()):
            raise TypeError("a value is of another kind")
        return mark
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as problem:
        raise GpufleetError(Reason.RESTORE_UNFINISHED, f"{path} says nothing that a restore says: {problem}") from None


def write_mark(data: Path, mark: RestoreMark) -> None:
    """Keep it in place of what was there; durable once this returns. Errors: OSError."""
    replace_file(data / FILE, json.dumps(asdict(mark)).encode())


def remove_mark(data: Path) -> None:
    """The next start is one like every other. Errors: OSError."""
    (data / FILE).unlink(missing_ok=True)
