"""How a model's workers are seen to, as far as it is known only while the scheduler runs. See core/serving.py."""

from dataclasses import dataclass

from .ids import JobId, ModelName
from .sessions import WorkerId
from .units import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One model's workers, as they were seen to last.

    `seats` are those of a worker, 0 until one has said so. `fewer_since` is since when fewer would do, `shrunk_at` when
    one was taken down last, and `look_at` when time alone changes something.
    """

    seats: int = 0
    fewer_since: Instant | None = None
    shrunk_at: Instant | None = None
    look_at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersSeenTo:
    """The workers of a model were seen to."""

    model: ModelName
    serving: Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker's process is over, though its stream has not broken yet."""

    worker: WorkerId
    job: JobId


ServingNote = WorkersSeenTo | WorkerGone
