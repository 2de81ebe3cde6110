"""Which files hold settings, and how each is checked and begun: `config init` and `config check`."""

from __future__ import annotations

from pathlib import Path

from gpufleet.agent_settings import AgentSettings
from gpufleet.cli_settings import check_contexts, check_project
from gpufleet.config import check_file
from gpufleet.config_layers import Problem
from gpufleet.errors import GpufleetError, Reason
from gpufleet.gateway_settings import GatewaySettings
from gpufleet.scheduler_settings import SchedulerSettings
from gpufleet.spelling import did_you_mean

PROGRAMS: dict[str, type[SchedulerSettings] | type[AgentSettings] | type[GatewaySettings]] = {
    "scheduler": SchedulerSettings,
    "agent": AgentSettings,
    "gateway": GatewaySettings,
}

_CLI_FILES = {"contexts": check_contexts, "gpuctl": check_project}


def check(file: Path, program: str = "") -> list[Problem]:
    """Everything that is wrong with a settings file, top down.

    Whose settings they are is told by `program` (scheduler, agent, gateway, contexts or gpuctl), or else by the file's
    name. Raises INVALID_ARGUMENT when neither tells, FILE_NOT_FOUND when there is no such file.
    """
    name = program or file.stem
    if name in PROGRAMS:
        return check_file(PROGRAMS[name], file)
    if name in _CLI_FILES:
        return _CLI_FILES[name](file)
    known = [*PROGRAMS, *_CLI_FILES]
    raise GpufleetError(
        Reason.INVALID_ARGUMENT,
        f'"{name}" is no program with settings{did_you_mean(name, known)}',
        next_step=f"Name the file {', '.join(f'{each}.toml' for each in known)}, or say --program {known[0]}.",
    )
