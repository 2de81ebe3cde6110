"""What is shown of the schedulers of a store: to who asks, and to who collects metrics."""

from collections.abc import Callable, Iterator

from gpufleet.telemetry.metrics import Instrument, Metrics, Reading, Readings

from ..api.server_facts import ShownScheduler
from ..state.units import SECOND, Instant, Span
from .judging import LeadingRole, Look, Run

INSTRUMENTS = (
    Instrument(name="gpufleet.leading", unit="", doc="1 where this scheduler leads, 0 where it stands by."),
    Instrument(name="gpufleet.leading.silence", unit="s", doc="Since the newest beat of each scheduler, by role."),
    Instrument(name="gpufleet.standby.records_behind", unit="{record}", doc="Stored, and not read by a standby."),
)


def in_order(look: Look) -> list[Run]:
    """The schedulers of a store, the one that leads first."""
    leader = look.leader()
    return sorted(look.runs, key=lambda run: (leader is None or run.identity != leader.identity, run.host, run.pid))


def silence_us(look: Look, run: Run) -> int:
    """How long a scheduler has not beaten, by the clock of the database."""
    return max(look.clock_us - run.beat_us, 0)


def records_behind(look: Look, run: Run) -> int:
    """How many records a standby has not read."""
    return max(look.sequence - run.sequence, 0) if run.role is LeadingRole.STANDING_BY else 0


def shown_runs(look: Look) -> list[ShownScheduler]:
    """The schedulers of a store, for who asks."""
    return [
        ShownScheduler(
            host=run.host,
            address=run.address,
            process_id=run.pid,
            version=run.version,
            role=run.role.value,
            term=run.term,
            since=Instant(run.since_us),
            silence=Span(silence_us(look, run)),
            records_behind=records_behind(look, run),
            problem=run.problem,
        )
        for run in in_order(look)
    ]


def observe(metrics: Metrics, own: str, look: Callable[[], Look]) -> None:
    """Tell of all this what the newest look says. `own` is the identity of this run."""
    if metrics.is_on:
        metrics.observe(INSTRUMENTS, lambda: _readings(own, look()))


def _readings(own: str, look: Look) -> Readings:
    mine = look.run(own)
    leads = mine is not None and mine.role is not LeadingRole.STANDING_BY
    return {
        "gpufleet.leading": [(float(leads), {})],
        "gpufleet.leading.silence": list(_silences(look)),
        "gpufleet.standby.records_behind": [
            (records_behind(look, run), {"host": run.host}) for run in look.runs if run.role is LeadingRole.STANDING_BY
        ],
    }


def _silences(look: Look) -> Iterator[Reading]:
    for run in look.runs:
        yield silence_us(look, run) / SECOND, {"host": run.host, "role": run.role.value.replace(" ", "_")}
