"""Which files hold settings, and how each is checked and begun: `config init` and `config check`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpufleet.config.agent_settings import AgentSettings
from gpufleet.config.cli_settings import check_contexts, check_project
from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.config.layers import Problem, variable_name
from gpufleet.config.merged import check_file
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.config.settings import Setting, sections_of, settings_of
from gpufleet.errors import GpufleetError, Reason
from gpufleet.text.spelling import did_you_mean

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


LINE_CHARS_MAX = 100


def template(cls: type[Any], program: str) -> str:
    """The file's text. Prose begins with `# `, a setting that holds its default with `#` alone."""
    prefix = f"GPUCTL_{program.upper()}_"
    example = variable_name(prefix, next(iter(settings_of(cls))))
    head = [
        f"# Settings of the gpufleet {program}. Each line shows the default; remove its # to change it.",
        f"# Flags and variables ({example}) go before this file. Check it with: gpuctl config check FILE",
        "# After a change, SIGHUP applies the settings marked (reloads); the others need a restart.",
    ]
    return "\n".join([*head, "", *_lines(cls)]).rstrip() + "\n"


def _lines(cls: type[Any]) -> Iterator[str]:
    for key, described in settings_of(cls).items():
        if "." not in key:
            yield from _setting(key, described)
    for name, (inner, doc) in sections_of(cls).items():
        yield from _prose(doc)
        yield f"[{name}]"
        yield ""
        yield from _lines(inner)


def _setting(key: str, described: Setting) -> Iterator[str]:
    yield from _prose(described.doc)
    yield from _prose(_facts(described))
    # A default in words depends on the machine; the file should read the same on all of them.
    yield f"#{key} =" if described.default_text else f"#{key} = {described.kind.to_toml(described.default())}"
    yield ""


def _facts(described: Setting) -> str:
    show = described.kind.to_toml
    facts = [described.kind.name]
    if described.low is not None:
        facts.append(f"at least {show(described.low)}")
    if described.high is not None:
        facts.append(f"at most {show(described.high)}")
    if described.default_text:
        facts.append(f"default: {described.default_text}")
    return "; ".join(facts) + (" (reloads)" if described.reloadable else "")


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, LINE_CHARS_MAX, initial_indent="# ", subsequent_indent="# ")
