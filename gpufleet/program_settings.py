"""Which programs have a settings file, for `config init` and `config check`."""

from __future__ import annotations

from gpufleet.agent_settings import AgentSettings
from gpufleet.scheduler_settings import SchedulerSettings

PROGRAMS: dict[str, type[SchedulerSettings] | type[AgentSettings]] = {
    "scheduler": SchedulerSettings,
    "agent": AgentSettings,
}
