"""A command that is to run in the world of an attempt, beside the attempt's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.jobs.runs import InputMode

from .typed import COLUMNS, ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class EnteredCommand:
    """What to run, beside what it has of the attempt: `env` goes over the attempt's environment.

    Without an `input` it reads an end at once. `columns` and `rows` are of a terminal.
    """

    argv: tuple[str, ...]
    input: InputMode | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    columns: int = COLUMNS
    rows: int = ROWS
