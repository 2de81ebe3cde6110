"""What the server tells about itself; the program fills it in."""

from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.config.handler_settings import Handlers

from ..state.units import Instant, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownScheduler:
    """A scheduler of this store: `role` is leading, beginning or standing by. By the clock of the database it has had
    that since `since`, and has not beaten for `silence`.
    """

    host: str
    address: str
    process_id: int
    version: str
    role: str
    term: int
    since: Instant
    silence: Span
    records_behind: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts of this start, and the few things about the program that a call may change."""

    version: str
    started_at: Instant
    clock_stepped: Callable[[], bool]
    output_free_bytes: Callable[[], int]
    output_error: Callable[[], str]
    settings: Callable[[], list[tuple[str, str, str]]]
    log_level: Callable[[], str]
    set_log_level: Callable[[str], None]
    streams_max: Callable[[], int]
    output_is_shared: Callable[[], bool]
    """Whether everybody with a token reads what jobs write, and how they run: `[privacy] output`."""
    file_store: Callable[[], str]
    """Where files of jobs are stored, for people."""
    file_store_error: Callable[[], str]
    """Why that place cannot be reached; empty while it can."""
    results_kept: Callable[[], Span]
    """For how long what jobs left is kept: `[files] keep_results`."""
    handlers: Callable[[], Handlers]
    """What takes files that come by ingest, by pattern of content types: `[handlers]`."""
    schedulers: Callable[[], list[ShownScheduler]] = list
    """The schedulers of this store; none where it cannot be shared."""
