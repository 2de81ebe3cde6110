"""Which class is stored under which kind, and which columns a row has beside its payload."""

from typing import get_args

from ..state.access import Secret
from ..state.durable import KINDS, Entity, EntityKey, key_of
from ..state.jobs import Finished, Job
from ..state.records import Record, job_of
from .codec import Codec
from .statements import Row

ENTITY_CLASSES: dict[str, type[Entity]] = {kind: cls for cls, (kind, _) in KINDS.items()}

RECORD_CLASSES: dict[str, type[Record]] = {cls.__name__: cls for cls in get_args(Record)}

KINDS_WITHOUT_STORY = frozenset({KINDS[Secret][0]})
"""What a record of it leaves out: of these the row alone is whole."""


def entity_row(codec: Codec, entity: Entity) -> Row:
    """A row of `entity`."""
    return (*key_row(key_of(entity)), getattr(entity, "version", 0), codec.encode(entity))


def key_row(key: EntityKey) -> Row:
    """The kind and id of a row of `entity`. A NUL, which PostgreSQL does not take in a text, is written as %00."""
    kind, id_ = key
    return (kind, id_.replace("%", "%25").replace("\x00", "%00"))


def record_row(codec: Codec, sequence: int, term: int, record: Record) -> Row:
    """A row of `record`."""
    return (sequence, term, record.at, job_of(record), type(record).__name__, codec.encode(record))


def finished_row(codec: Codec, job: Job) -> Row:
    """A row of `finished_job`."""
    end = job.state
    assert isinstance(end, Finished), f"job {job.id} has not ended"
    columns = (job.id, searchable(job.user), searchable(job.spec.name), end.outcome.name, job.submitted_at, end.at)
    last_item = None if job.items is None else job.id + job.items.indices.count
    return (*columns, codec.encode(job), job.array, last_item)


def searchable(text: str) -> str:
    """A text as a column can hold it; the payload keeps what could not be kept here."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
