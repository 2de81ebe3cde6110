"""How another command is run in the world of an attempt, however that world is made: the one port for it.

Of processes the keeper's supervisors do so (`keeper/entering`).
"""

from __future__ import annotations

from typing import Protocol

from gpufleet.jobs.runs import ExitStatus, RankKey

from ..core.entering import EnteredCommand
from ..core.launch import NotRun, Refusal
from ..core.outcome import Stream


class Entered(Protocol):
    """A command that runs. Its descriptors do not block, and are its own to close."""

    @property
    def outputs(self) -> dict[Stream, int]:
        """What it writes; on a terminal all of it is standard output."""
        ...

    @property
    def input_fd(self) -> int | None:
        """What it reads; None where it reads nothing any more."""
        ...

    @property
    def is_terminal(self) -> bool:
        """Whether it has a terminal."""
        ...

    def end_input(self) -> None:
        """Let it read the end."""
        ...

    def resize(self, columns: int, rows: int) -> None:
        """Give its terminal another size."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        ...

    async def exit(self) -> ExitStatus | None:
        """How it ended, once it has; None where it was ended with its attempt."""
        ...

    def close(self) -> None:
        """Let go of it; one that still runs is ended."""
        ...


class World(Protocol):
    """What attempts run in; the keepers."""

    async def enter(self, key: RankKey, command: EnteredCommand) -> Entered | NotRun | Refusal:
        """Run a command in the world of an attempt: its user, namespaces, limits, environment and folder."""
        ...
