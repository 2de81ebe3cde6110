"""Who may know whom, where import-linter cannot see it: the standard library, and names spelled out."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.packaging.source_tree import PROGRAMS, ROOT, Module, modules

PURE_PACKAGES = (
    "scheduler.state",
    "scheduler.policy",
    "scheduler.core",
    "node_agent.core",
    "inference.core",
    "gateway.proxy.core",
    "gpufleet.client.core",
    "gpufleet.devices.tally",
    "gpufleet.jobs.runs",
)

# What a pure package may take from the standard library: computing, never the clock, chance or the machine.
# A new name here is a decision; that is why this is a list of what is allowed.
PURE_STANDARD_LIBRARY = frozenset(
    {
        "__future__",
        "abc",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "types",
        "typing",
    }
    | {"array", "bisect", "graphlib", "heapq", "itertools", "operator"}
    | {"datetime", "decimal", "fractions", "math", "numbers", "statistics"}
    | {"base64", "binascii", "hashlib", "ipaddress", "json", "struct", "zlib"}
    | {"difflib", "fnmatch", "re", "shlex", "string", "textwrap"}
)
# Where the scheduler speaks to others: requests become values here (`validate`, `convert`), and answers protos.
PROTO_SIDE = ("scheduler.wire", "scheduler.api", "scheduler.links", "scheduler.session_links")
IMPURE_CALLS = frozenset({"open", "print", "input", "__import__", "exec", "eval"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def pure_modules() -> list[Module]:
    return [m for m in modules(*PROGRAMS, "gpufleet") if package_of(m.name, PURE_PACKAGES)]


def package_of(name: str, packages: tuple[str, ...]) -> str | None:
    return next((package for package in packages if is_inside(name, package)), None)


def test_pure_packages_import_only_computing_from_the_standard_library_and_each_other() -> None:
    wrong = [
        f"{module.at(found.line)} imports {found.module}"
        for module in pure_modules()
        for found in module.imports
        if not package_of(found.module, PURE_PACKAGES) and found.module.partition(".")[0] not in PURE_STANDARD_LIBRARY
    ]
    assert not wrong, (
        f"{', '.join(PURE_PACKAGES)} decide; time, chance, files and the network come in from outside:\n"
        + "\n".join(wrong)
    )


def test_pure_packages_ask_nothing_of_the_machine_through_builtins_or_datetime() -> None:
    wrong = []
    for module in pure_modules():
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                    wrong.append(f"{module.at(node.lineno)} calls {name}()")
                case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name) if name in CLOCK_METHODS:
                    wrong.append(f"{module.at(node.lineno)} reads the clock through datetime.{name}")
    assert not wrong, "pure packages are given what they need:\n" + "\n".join(wrong)


def test_the_keeper_and_its_clients_know_the_standard_library_and_what_is_pure() -> None:
    wrong = [
        f"{module.at(found.line)} imports {found.module}"
        for module in modules("node_agent/keeper")
        for found in module.imports
        if not package_of(found.module, ("node_agent", *PURE_PACKAGES))
        and found.module.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert not wrong, "the keeper uses the standard library, node_agent and pure packages only:\n" + "\n".join(wrong)


IMPORT_THE_KEEPER = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
importlib.import_module("node_agent.keeper.__main__")
print(*sys.modules)
"""


def test_the_keeper_starts_where_nothing_is_installed_and_loads_all_of_ours_at_once() -> None:
    """It lives for as long as its jobs and outlives upgrades: nothing installed may change under its feet."""
    command = [sys.executable, "-I", "-S", "-c", IMPORT_THE_KEEPER, str(ROOT)]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    ours = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} - {"__main__"}
    assert {"node_agent.keeper.keeper", "node_agent.keeper.spawn", "gpufleet.jobs.runs"} <= ours
    parents = {"gpufleet", "gpufleet.jobs"}
    assert not {name for name in ours - parents if not package_of(name, ("node_agent", "gpufleet.jobs.runs"))}
    later = [
        f"{module.at(found.line)} imports {found.module}"
        for module in modules("node_agent", "gpufleet/jobs")
        if module.name in ours
        for found in module.imports_inside_functions()
        if package_of(found.module, ("node_agent", "gpufleet"))
    ]
    assert not later, "an upgrade may have come between; import it at the top:\n" + "\n".join(later)


def test_only_the_servicers_and_the_links_know_the_protos() -> None:
    """What is decided, stored and kept in order is independent of what the contracts look like."""
    wrong = [
        f"{module.at(found.line)} imports {found.module}"
        for module in modules("scheduler")
        if not package_of(module.name, PROTO_SIDE)
        for found in module.imports
        if is_inside(found.module, "gpufleet.v1")
    ]
    assert not wrong, f"only {', '.join(PROTO_SIDE)} know the protos:\n" + "\n".join(wrong)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_reaches_its_own_modules_by_relative_imports_and_no_other_program(program: str) -> None:
    wrong = []
    for module in modules(program):
        for found in module.imports:
            first, _, rest = found.module.partition(".")
            if not found.is_relative and (
                first in PROGRAMS or (first == "gpufleet" and rest.partition(".")[0] in PROGRAMS)
            ):
                wrong.append(f"{module.at(found.line)} imports {found.module}")
            elif found.is_relative and first != program:
                wrong.append(f"{module.at(found.line)} climbs out of {program} to {found.module}")
    assert not wrong, "inside a program imports are relative, and programs meet in gpufleet.* only:\n" + "\n".join(
        wrong
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_spells_its_own_absolute_name(program: str) -> None:
    """The name differs between a checkout and an install; `f"{__package__}.x"` is right in both."""
    wrong = [
        f"{module.at(line)} says {text!r}"
        for module in modules(program)
        for text, line in module.text()
        if f"gpufleet.{program}" in text
    ]
    assert not wrong, f"say it with __package__ instead of gpufleet.{program}:\n" + "\n".join(wrong)


def test_the_shared_library_knows_no_program() -> None:
    wrong = [
        f"{module.at(found.line)} imports {found.module}"
        for module in modules("gpufleet")
        for found in module.imports
        if package_of(found.module.removeprefix("gpufleet."), PROGRAMS)
    ]
    assert not wrong, "gpufleet.* is what programs share; it knows none of them:\n" + "\n".join(wrong)


POSIX_ONLY = frozenset({"pwd", "grp", "fcntl", "termios", "tty", "pty", "resource", "syslog", "crypt", "posix", "spwd"})


def test_what_a_worker_needs_starts_where_there_is_no_posix() -> None:
    """Workers run on Windows too: what only POSIX has is imported where it is needed, and never at a module's top."""
    wrong = []
    for module in modules("inference", "gpufleet"):
        for node in module.tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            wrong += [f"{module.at(node.lineno)} imports {name}" for name in names if name in POSIX_ONLY]
    assert not wrong, "import it inside the function that needs it:\n" + "\n".join(wrong)
