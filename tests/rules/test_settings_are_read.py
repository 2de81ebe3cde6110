"""Every setting is read by its program: one that nobody reads is a promise that nothing keeps.

A setting counts as read where its name is taken from a value that is named after its table or annotated with its class,
`settings.placement.node_order`, `settings().origins` or `output.head_bytes_max`; that its own class checks it does not
count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpufleet.config.agent_settings import AgentSettings
from gpufleet.config.cli_settings import CliSettings
from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.config.kinds import INTEGER
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.config.settings import section, sections_of, setting, settings_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS: dict[type[Any], str] = {
    SchedulerSettings: "scheduler",
    AgentSettings: "node_agent",
    GatewaySettings: "gateway",
    CliSettings: "cli",
}
NAMES_OF_THE_WHOLE = frozenset({"settings", "now"})
"""What a value with all settings of a program is called; `now` is that of a Live."""


def unread(cls: type[Any], sources: Iterable[str]) -> list[str]:
    """The keys of a program's settings that none of its sources reads."""
    reads = {read for source in sources for read in _reads(ast.parse(source))}
    names = {"": NAMES_OF_THE_WHOLE | {cls.__name__}}
    names |= {name: frozenset({name, inner.__name__}) for name, (inner, _) in sections_of(cls).items()}
    return [
        key
        for key in settings_of(cls)
        for table, _, name in [key.rpartition(".")]
        if not any((of, name) in reads for of in names[table])
    ]


def _reads(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each `value.name` as what its value is called, and as what class it is annotated with."""
    classes = {
        (argument.arg, each.id)
        for argument in ast.walk(tree)
        if isinstance(argument, ast.arg) and argument.annotation is not None
        for each in ast.walk(argument.annotation)
        if isinstance(each, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            of = node.value.func if isinstance(node.value, ast.Call) else node.value
            called = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
            yield called, node.attr
            yield from ((kind, node.attr) for name, kind in classes if name == called)


@pytest.mark.parametrize("cls", PROGRAMS)
def test_every_setting_is_read(cls: type[Any]) -> None:
    files = [*(ROOT / PROGRAMS[cls]).rglob("*.py"), *(ROOT / "gpufleet").rglob("*.py")]
    sources = [file.read_text() for file in files if not file.stem.endswith("_settings") or cls is CliSettings]
    assert not unread(cls, sources), "nothing reads these settings: read them where they are needed, or remove them"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner:
    width: int = setting(1, "Read or not.", INTEGER)
    height: int = setting(1, "Read or not.", INTEGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outer:
    width: int = setting(1, "Read or not.", INTEGER)
    inner: _Inner = section(_Inner, "A table.")


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("", ["width", "inner.width", "inner.height"]),
        ("settings.width", ["inner.width", "inner.height"]),
        ("live.now.inner.width", ["width", "inner.height"]),
        ("settings().width; of.settings().inner.width", ["inner.height"]),
        ("settings.width = 1; settings.inner.width = 1", ["width", "inner.width", "inner.height"]),
        ("def area(of: _Inner): return of.width * of.height", ["width"]),
        ("def area(of: list[int]): return of.width * image.height", ["width", "inner.width", "inner.height"]),
    ],
)
def test_a_setting_that_nothing_reads_is_found(source: str, left: list[str]) -> None:
    assert unread(_Outer, [source]) == left
