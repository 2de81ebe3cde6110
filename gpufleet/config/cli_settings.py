"""The CLI's settings: flags, GPUCTL_ variables, the project's file, the context, defaults, in this order.

Inside a job the way to its own scheduler goes before the project's file and the context, with the token that is good
for that job alone: for commands that name that job and no other, and for all where the account has no context. Whatever
is chosen by hand goes first.

The project's file, `./gpuctl.toml`, comes with whatever folder one happens to stand in. So it may set
harmless things and choose among the contexts that the account already has, by `context` or by the address
in `scheduler`; it can never name a token, weaken TLS, or have the account's token sent to an address that
no context has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from gpufleet.config.contexts import Contexts, context_of_address, read_contexts
from gpufleet.config.files import line_of, parse_toml, read_text, table_layer
from gpufleet.config.kinds import ADDRESS_OR_LIST, BOOLEAN, HTTP_URL, INTEGER, PATH, SECONDS, SIZE, one_of
from gpufleet.config.layers import Layer, Problem, config_error, flag_layer, variable_layer
from gpufleet.config.merged import Resolved, resolve
from gpufleet.config.paths import PROJECT_FILE, contexts_file
from gpufleet.config.settings import setting
from gpufleet.jobs.variables import (
    CA_FILE_VARIABLE,
    CLIENT_CERT_FILE_VARIABLE,
    INSECURE_VARIABLE,
    JOB_ID_VARIABLE,
    JOB_TOKEN_VARIABLE,
    SCHEDULER_VARIABLE,
)
from gpufleet.net.addresses import DEFAULT_PORT, Address
from gpufleet.security.tokens import FoundToken, find_token
from gpufleet.text.spelling import did_you_mean

VARIABLE_PREFIX = "GPUCTL_"
CONTEXT_VARIABLE = f"{VARIABLE_PREFIX}CONTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class CliSettings:
    """What a flag, a GPUCTL_ variable, ./gpuctl.toml or a context may set for every command."""

    scheduler: tuple[Address, ...] = setting(
        (Address("127.0.0.1", DEFAULT_PORT),),
        "The scheduler's HOST or HOST:PORT, and those of its standbys.",
        ADDRESS_OR_LIST,
    )
    token_file: Path | None = setting(None, "The file with your token.", PATH, default_text="none", private=True)
    ca_file: Path | None = setting(
        None,
        "The authority that signed the scheduler's certificate, PEM.",
        PATH,
        default_text="the system's authorities",
        private=True,
    )
    client_cert_file: Path | None = setting(
        None,
        "Your own certificate with its key, PEM, of mode 0600, for a scheduler that asks for one.",
        PATH,
        default_text="none",
        private=True,
    )
    insecure: bool = setting(
        False, "Speak to a scheduler on another machine without encryption.", BOOLEAN, private=True
    )
    gateway: str | None = setting(
        None,
        "The gateway that served models are asked through.",
        HTTP_URL,
        default_text="http://127.0.0.1:7860, where the scheduler is on this machine",
        private=True,
    )
    shared_root: Path | None = setting(
        None,
        "The folder that nodes see, too: files of jobs that lie in it are read there, and not uploaded.",
        PATH,
        default_text="none",
        private=True,
    )
    output: str = setting("table", "How reading commands print.", one_of("table", "wide", "json", "jsonl", "name"))
    connection_timeout: timedelta = setting(
        timedelta(seconds=30), "The longest wait for one answer.", SECONDS, low=timedelta(milliseconds=100)
    )
    max_wait_time: timedelta = setting(
        timedelta(seconds=300),
        "The longest wait for new output before a follower asks whether the job lives.",
        SECONDS,
        low=timedelta(seconds=1),
    )
    max_consecutive_timeouts: int = setting(
        30, "A follower gives up after so many unanswered questions in a row.", INTEGER, low=1, high=1_000_000
    )
    upload_bytes_max: int = setting(
        2 * 2**30,
        "The largest folder that goes along with a job (--upload), all of its files together.",
        SIZE,
        low=0,
        high=2**50,
    )
    upload_files_max: int = setting(
        20_000, "How many files go along with a job in a folder.", INTEGER, low=1, high=100_000
    )
    session_timeout: timedelta = setting(
        timedelta(seconds=7200), "The longest attached session.", SECONDS, low=timedelta(seconds=1)
    )


class CliConfig(NamedTuple):
    """The settings that hold for this command, and the context they are of; an empty name is none."""

    resolved: Resolved[CliSettings]
    context: str
    is_in_job: bool = False

    @property
    def settings(self) -> CliSettings:
        """The values."""
        return self.resolved.settings

    def token(self, environment: Mapping[str, str] = os.environ) -> FoundToken | None:
        """The token: of --token-file, else GPUCTL_TOKEN, else GPUCTL_TOKEN_FILE, the job's, or the context's file."""
        file, origin = self.settings.token_file, self.resolved.origins["token_file"]
        is_flag = origin.startswith("--")
        found = find_token(file if is_flag else None, environment, None if is_flag else file)
        if found is None and self.is_in_job:
            return FoundToken(environment[JOB_TOKEN_VARIABLE], JOB_TOKEN_VARIABLE)
        return found


def load_cli(
    flags: Mapping[str, object],
    *,
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    jobs: Sequence[str] = (),
) -> CliConfig:
    """The settings for one command; `context` is its --context, and `jobs` what it names, if that is all it is about.

    Raises CONFIG_INVALID with all problems.
    """
    problems: list[Problem] = []
    contexts = read_contexts(contexts_file(environment), problems)
    explicit = [flag_layer(flags), variable_layer(CliSettings, VARIABLE_PREFIX, environment)]
    project = _read_project((folder or Path.cwd()) / PROJECT_FILE, problems)
    name, where = _choose_context(context, environment, explicit, project, contexts, problems)
    is_chosen = context or environment.get(CONTEXT_VARIABLE) or any("scheduler" in each.values for each in explicit)
    is_in_job = (
        not is_chosen and environment.get(JOB_TOKEN_VARIABLE, "") != "" and (not name or _is_own(jobs, environment))
    )
    layers = [*explicit, *([_job_layer(environment)] if is_in_job else []), project.layer]
    if is_in_job:
        name = ""
    if name and name not in contexts.tables:
        why = f'there is no context "{name}"{did_you_mean(name, contexts.tables)}'
        problems.append(Problem(where, "context", why))
    elif name:
        layers.append(_context_layer(contexts, name, problems))
    resolved = resolve(CliSettings, layers, problems)
    if resolved is None:
        raise config_error(problems)
    return CliConfig(resolved, name, is_in_job)


def _is_own(jobs: Sequence[str], environment: Mapping[str, str]) -> bool:
    return set(jobs) == {environment.get(JOB_ID_VARIABLE)}


def _job_layer(environment: Mapping[str, str]) -> Layer:
    """How the job's own scheduler is reached, as its node said."""
    names = {
        "scheduler": SCHEDULER_VARIABLE,
        "ca_file": CA_FILE_VARIABLE,
        "client_cert_file": CLIENT_CERT_FILE_VARIABLE,
        "insecure": INSECURE_VARIABLE,
    }
    given = {key: environment[name] for key, name in names.items() if environment.get(name)}
    return Layer(given, lambda key: names[key], is_text=True)


def check_contexts(file: Path) -> list[Problem]:
    """Everything that is wrong with a file of contexts."""
    problems: list[Problem] = []
    read_text(file)  # one that was named must be there
    contexts = read_contexts(file, problems)
    if contexts.current and contexts.current not in contexts.tables:
        why = f'there is no context "{contexts.current}"{did_you_mean(contexts.current, contexts.tables)}'
        problems.append(Problem(f"{file}:{line_of(contexts.text, 'current')}", "current", why))
    for name in contexts.tables:
        resolve(CliSettings, [_context_layer(contexts, name, problems)], problems)
    return problems


def check_project(file: Path) -> list[Problem]:
    """Everything that is wrong with a project's file, taken without the contexts of an account."""
    problems: list[Problem] = []
    read_text(file)
    project = _read_project(file, problems)
    scheduler = {} if project.scheduler is None else {"scheduler": project.scheduler}
    layer = Layer({**project.layer.values, **scheduler}, project.layer.where, is_text=False)
    resolve(CliSettings, [layer], problems)
    return problems


def _context_layer(contexts: Contexts, name: str, problems: list[Problem]) -> Layer:
    table, inside = contexts.tables[name], f"contexts.{name}"
    return table_layer(CliSettings, table, contexts.text, contexts.file, problems, inside=inside)


class _Project(NamedTuple):
    """The project's file: its harmless values, and what it says on the context."""

    layer: Layer
    context: str = ""
    scheduler: object = None


def _read_project(file: Path, problems: list[Problem]) -> _Project:
    if not file.exists():
        return _Project(Layer({}, str, is_text=False))
    text = read_text(file)
    table: dict[str, Any] = dict(parse_toml(text, file, problems))
    context, scheduler = table.pop("context", ""), table.pop("scheduler", None)
    if not isinstance(context, str):
        problems.append(Problem(str(file), "context", "this is not the name of a context"))
        context = ""
    layer = table_layer(CliSettings, table, text, file, problems, in_project=True)
    return _Project(layer, context, scheduler)


def _choose_context(
    flag: str | None,
    environment: Mapping[str, str],
    explicit: list[Layer],
    project: _Project,
    contexts: Contexts,
    problems: list[Problem],
) -> tuple[str, str]:
    """The context's name and where it was chosen; an address that was typed finds its own context."""
    if flag:
        return flag, "--context"
    if variable := environment.get(CONTEXT_VARIABLE):
        return variable, CONTEXT_VARIABLE
    for layer in explicit:
        if "scheduler" in layer.values:
            found = context_of_address(layer.values["scheduler"], contexts)
            return found or contexts.current, layer.where("scheduler")
    if project.context:
        return project.context, PROJECT_FILE
    if project.scheduler is not None:
        where = project.layer.where("scheduler")
        found = context_of_address(project.scheduler, contexts)
        if not found:
            why = "no context of yours has this address, and a project's file cannot bring one; add a context"
            problems.append(Problem(where, "scheduler", why))
        return found, where
    return contexts.current, str(contexts.file)
