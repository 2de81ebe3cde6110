"""Who may know whom, where import-linter cannot see it: the standard library, and names spelled out."""

from __future__ import annotations

import ast
import sys

import pytest

from tests.packaging.source_tree import PROGRAMS, Module, modules

PURE_PACKAGES = (
    "scheduler.state",
    "scheduler.policy",
    "scheduler.core",
    "node_agent.core",
    "inference.core",
    "gpufleet.devices.tally",
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
PROTO_SIDE = ("scheduler.api", "scheduler.links", "scheduler.session_links")
IMPURE_CALLS = frozenset({"open", "print", "input", "__import__", "exec", "eval"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def pure_modules() -> list[Module]:
    return [m for m in modules("scheduler", "node_agent", "inference", "gpufleet") if package_of(m.name, PURE_PACKAGES)]


def package_of(name: str, packages: tuple[str, ...]) -> str | None:
    return next((package for package in packages if is_inside(name, package)), None)


def test_pure_packages_import_only_computing_from_the_standard_library_and_each_other() -> None:
    wrong = [
        f"{module.at(found.line)} imports {found.module}"
        for module in pure_modules()
        for found in module.imports()
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


def test_the_keeper_starts_on_the_standard_library_alone() -> None:
    """It lives for as long as its jobs and outlives upgrades: nothing installed may change under its feet."""
    wrong = [
        f"{module.at(found.line)} imports {found.module}"
        for module in modules("node_agent/keeper")
        for found in module.imports()
        if not is_inside(found.module, "node_agent") and found.module.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert not wrong, "the keeper uses the standard library and node_agent only:\n" + "\n".join(wrong)


def test_only_the_servicers_and_the_links_know_the_protos() -> None:
    """What is decided, stored and kept in order is independent of what the contracts look like."""
    wrong = [
        f"{module.at(found.line)} imports {found.module}"
        for module in modules("scheduler")
        if not package_of(module.name, PROTO_SIDE)
        for found in module.imports()
        if is_inside(found.module, "gpufleet.v1")
    ]
    assert not wrong, f"only {', '.join(PROTO_SIDE)} know the protos:\n" + "\n".join(wrong)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_reaches_its_own_modules_by_relative_imports_and_no_other_program(program: str) -> None:
    wrong = []
    for module in modules(program):
        for found in module.imports():
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
        for found in module.imports()
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
