"""What `upgrade --check` compares: two versions' migrations and settings, and the versions of a fleet's programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import connected
from gpufleet.fleet.settings import Settings

from ..nodes.node_calls import all_nodes
from ..sessions.listing import all_models
from .program_versions import gateway_versions, worker_versions
from .version import own_version

READ_SECONDS_MAX = 60
PROGRAMS_SHOWN_MAX = 8
MIGRATIONS = "scheduler/store/migrations/versions"
WHEEL = re.compile(r"gpufleet-(\d+\.\d+\.\d+[^-]*)-.*\.whl")
VERSION = re.compile(r"(\d+)\.(\d+)\.")

LIST_SETTINGS = """
import json, sys
sys.path[:0] = sys.argv[1:]
from importlib import import_module
from gpufleet.config.settings import settings_of
found = {}
for program in ("scheduler", "agent", "gateway"):
    module = import_module(f"gpufleet.config.{program}_settings")
    found[program] = sorted(settings_of(getattr(module, f"{program.title()}Settings")))
print(json.dumps(found))
"""
"""Run by an interpreter of its own: two versions of a package have no place in one."""


@dataclass(frozen=True, slots=True)
class VersionContents:
    """What a version of gpufleet brings."""

    version: str
    migrations: tuple[str, ...]
    settings: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class VersionChange:
    """What an upgrade changes. `in_the_way` are sentences, each of which keeps one from it."""

    before: str
    after: str
    migrations: list[str]
    new_settings: list[str]
    retired_settings: list[str]
    in_the_way: list[str]
    to_upgrade: Mapping[str, str]
    """Programs of another version, and which: scheduler, agents by their nodes, gateways, workers."""


def check_upgrade(settings: Settings, wheel: Path | None) -> int:
    """Print what would change; the exit code. Errors: those of the calls, FILE_NOT_FOUND, INVALID_ARGUMENT of --to."""
    installed = _installed()
    new = installed if wheel is None else _of_wheel(wheel)
    with connected(settings) as asked:
        server = asked.call(asked.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        agents = {node.name: node.info.agent_version for node in all_nodes(asked)}
        others = gateway_versions(server) | worker_versions(all_models(asked))
    found = compare(server.version, agents, installed, new, others)
    if settings.format in ("json", "jsonl"):
        print(json.dumps(asdict(found), indent=2 if settings.format == "json" else None))
    else:
        print("\n".join(in_lines(found)))
    return 1 if found.in_the_way else 0


def compare(
    server: str,
    agents: Mapping[str, str],
    installed: VersionContents,
    new: VersionContents,
    others: Mapping[str, str] | None = None,
) -> VersionChange:
    """What `new` changes for a fleet whose scheduler and agents have these versions, and `others`: gateways, workers.

    Migrations and settings are compared with those that are installed here; they are the fleet's where the versions
    are equal.
    """
    programs = {"the scheduler": server} | {f"node {name}": version for name, version in agents.items()}
    programs |= others or {}
    in_the_way = [
        f"{what} has version {version}, which does not work with {new.version}: upgrade to a version between them first"
        for what, version in programs.items()
        if not work_together(version, new.version)
    ]
    if new.migrations != installed.migrations and not set(new.migrations) >= set(installed.migrations):
        in_the_way.append(f"{new.version} does not know every change of the database that {installed.version} made")
    before = {f"{program}: {key}" for program, keys in installed.settings.items() for key in keys}
    after = {f"{program}: {key}" for program, keys in new.settings.items() for key in keys}
    return VersionChange(
        before=server,
        after=new.version,
        migrations=[each for each in new.migrations if each not in installed.migrations],
        new_settings=sorted(after - before),
        retired_settings=sorted(before - after),
        in_the_way=in_the_way,
        to_upgrade={what: version for what, version in programs.items() if version != new.version},
    )


def work_together(one: str, other: str) -> bool:
    """Whether programs of these versions do: of one major version, and of a minor one or the next."""
    (a, b) = (VERSION.match(each) for each in (one, other))
    if a is None or b is None:
        return one == other
    return a[1] == b[1] and abs(int(a[2]) - int(b[2])) <= 1


def in_lines(found: VersionChange) -> list[str]:
    """For people."""
    lines = [f"from {found.before} to {found.after}"]
    changed = ", ".join(found.migrations)
    lines.append(f"database  {f'changed when the scheduler starts: {changed}' if changed else 'as it is'}")
    lines.append(f"settings  {'; '.join(_of_settings(found)) or 'as they are'}")
    if found.to_upgrade:
        named = [f"{what} ({version})" for what, version in list(found.to_upgrade.items())[:PROGRAMS_SHOWN_MAX]]
        more = len(found.to_upgrade) - len(named)
        lines.append(f"programs  to be upgraded: {', '.join(named)}{f' and {more:,} more' if more else ''}")
    lines += [f"IN THE WAY  {sentence}" for sentence in found.in_the_way]
    if found.migrations:
        lines.append("Back up first, as there is no way back without: gpuctl scheduler backup FILE")
    if not found.in_the_way and found.before != found.after:
        lines.append("Upgrade and restart the scheduler first, then gateways and agents; jobs go on meanwhile.")
    return lines


def _of_settings(found: VersionChange) -> list[str]:
    named = (("new", found.new_settings), ("gone", found.retired_settings))
    return [f"{word}: {', '.join(keys)}" for word, keys in named if keys]


def _installed() -> VersionContents:
    spec = find_spec("gpufleet.scheduler")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations))) / Path(MIGRATIONS).relative_to("scheduler")
    names = tuple(sorted(file.stem for file in folder.glob("[0-9]*.py")))
    return VersionContents(own_version(), names, _settings())


def _of_wheel(wheel: Path) -> VersionContents:
    match = WHEEL.fullmatch(wheel.name)
    if match is None:
        why = f"--to: {wheel.name} is not named as a wheel of gpufleet is"
        raise GpufleetError(
            Reason.INVALID_ARGUMENT, why, next_step="Give a file such as gpufleet-0.2.0-py3-none-any.whl."
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            within = f"gpufleet/{MIGRATIONS}/"
            files = [name.removeprefix(within) for name in archive.namelist() if name.startswith(within)]
    except FileNotFoundError:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"--to: there is no file {wheel}") from None
    except (OSError, zipfile.BadZipFile) as problem:
        raise GpufleetError(
            Reason.INVALID_ARGUMENT, f"--to: {wheel} cannot be read: {problem}", next_step="Download it again."
        ) from None
    names = tuple(sorted(name.removesuffix(".py") for name in files if re.fullmatch(r"\d[^/]*\.py", name)))
    return VersionContents(match[1], names, _settings(str(wheel.absolute())))


def _settings(*path: str) -> Mapping[str, list[str]]:
    command = [sys.executable, "-P", "-c", LIST_SETTINGS, *path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=READ_SECONDS_MAX)
    if done.returncode != 0:
        why = done.stderr.strip().rpartition("\n")[2]
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"--to: the settings of {path[0] if path else 'this version'} cannot be read: {why}",
            next_step="Give a whole wheel of gpufleet.",
        )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found
