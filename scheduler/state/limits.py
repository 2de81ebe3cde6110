"""The numbers of the rules."""

from dataclasses import dataclass

from .units import MB, MINUTE, SECOND, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers of the rules that a configuration may change."""

    heartbeat_interval: Span = Span(2 * SECOND)
    missed_heartbeats: int = 3
    node_lease: Span = Span(60 * SECOND)
    requeue_fence: Span = Span(10 * MINUTE)
    unreachable_span: Span = Span(24 * 60 * MINUTE)
    request_retention: Span = Span(24 * 60 * MINUTE)
    sample_age: Span = Span(5 * SECOND)
    node_losses: int = 3
    left_out_span: Span = Span(30 * SECOND)
    queued_jobs: int = 1_000_000
    default_min_memory_bytes: int = 8_000 * MB
