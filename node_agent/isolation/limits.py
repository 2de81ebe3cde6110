"""Within what jobs are kept here: memory, CPUs and processes, where control groups are wanted and can be made."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpufleet.config.agent_settings import CPUS, MEMORY, PROCESSES, IsolationSettings

from ..control_groups.files import CPU, PIDS
from ..control_groups.files import MEMORY as MEMORY_CONTROLLER
from ..control_groups.finding import GroupFacts, find_groups
from ..core.launch import ControlGroup

_log = logging.getLogger(__name__)

CONTROLLER_OF = {MEMORY: MEMORY_CONTROLLER, CPUS: CPU, PROCESSES: PIDS}

ALL = (MEMORY, CPUS, PROCESSES)

NOT_WANTED = "none are wanted: [isolation] limits in agent.toml says so, or jobs run as the agent"


class Limiting:
    """Answers what bounds a job. `isolates`: whether jobs run as their users here; then limits are wanted, unless the
    settings say otherwise.

    Groups are looked for at once, and only where they are wanted: see `find_groups`.
    """

    def __init__(
        self, isolation: IsolationSettings, *, isolates: bool, find: Callable[[], GroupFacts] = find_groups
    ) -> None:
        self.wanted = isolation.limits if isolation.limits is not None else (ALL if isolates else ())
        self.facts = find() if self.wanted else GroupFacts(why_not=NOT_WANTED)
        self._processes_max = isolation.processes_max

    @property
    def held(self) -> tuple[str, ...]:
        """What jobs are kept within: some of "memory", "cpus" and "processes"."""
        return tuple(each for each in self.wanted if CONTROLLER_OF[each] in self.facts.folders)

    def of(self, cpus: int, memory_bytes: int) -> ControlGroup | None:
        """The group of a job that reserves so many CPUs and bytes, 0 for none; None where nothing bounds it."""
        held = self.held
        if not held:
            return None
        return ControlGroup(
            version=self.facts.version,
            folders={CONTROLLER_OF[each]: self.facts.folders[CONTROLLER_OF[each]] for each in held},
            memory_bytes=memory_bytes if MEMORY in held else 0,
            cpus=cpus if CPUS in held else 0,
            processes=self._processes_max if PROCESSES in held else 0,
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """What they are to be kept within, and are not."""
        return tuple(each for each in self.wanted if each not in self.held)

    @property
    def note(self) -> str:
        """Why not all that is wanted holds, in a clause; empty where it does."""
        return f"not within their {' and '.join(self.missing)}: {self.facts.why_not}" if self.missing else ""

    def log(self) -> None:
        """Say once what holds, and why not more."""
        if self.held:
            _log.info("jobs are kept within their %s by %s", " and ".join(self.held), self.facts.kind)
        if self.missing:
            _log.warning("jobs are not kept within their %s: %s", " and ".join(self.missing), self.facts.why_not)
