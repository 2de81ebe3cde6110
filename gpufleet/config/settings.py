"""How a program declares its settings: one frozen dataclass, a line a setting; all else follows from it.

A field made with `setting` is a key of the program's TOML file; a field made with `section` is a table of
further keys. From this table come the commented template, the checks, `config show --origin`, and what a
reload may change (gpufleet/config/merged.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, cast

from gpufleet.config.kinds import PATH, Kind, Unreadable
from gpufleet.config.paths import state_dir

T = TypeVar("T")


class Setting(NamedTuple):
    """One key: its kind, default, meaning and bounds.

    `reloadable`: SIGHUP applies a new value; others wait for a restart. `private`: only the account's own
    files, variables and flags may set it, never the file of a project, which may come from anyone. An unset
    optional value is None; `default_text` then says what happens.
    """

    kind: Kind[Any]
    default: Callable[[], Any]
    doc: str
    default_text: str = ""
    low: Any = None
    high: Any = None
    reloadable: bool = False
    private: bool = False
    variable: str = ""

    def read(self, raw: object, *, is_text: bool) -> Any:
        """The value in TOML, or in the text of a flag or variable; raises Unreadable."""
        value = self.kind.from_text(cast(str, raw)) if is_text else self.kind.from_toml(raw)
        show = self.kind.to_toml
        if self.low is not None and value < self.low:
            raise Unreadable(f"{show(value)} is less than the least, {show(self.low)}")
        if self.high is not None and value > self.high:
            raise Unreadable(f"{show(value)} is more than the most, {show(self.high)}")
        return value

    def show(self, value: Any) -> str:
        """The value as TOML, or the words for an unset one."""
        is_unset = value is None or (value == "" and self.default_text)
        return f"({self.default_text or 'unset'})" if is_unset else self.kind.to_toml(value)


class _How(TypedDict, total=False):
    default_text: str
    low: object
    high: object
    reloadable: bool
    private: bool
    variable: str


def setting(default: T, doc: str, kind: Kind[Any], **how: Unpack[_How]) -> T:
    """A field of a settings class, described as `Setting` says; typed as its value, as `dataclasses.field` is."""
    return _field(lambda: default, doc, kind, how)


def data_folder(program: str, doc: str) -> Path:
    """The field of a program's data folder, by default its own of this account."""
    default_text = f"~/.local/state/gpufleet/{program}"
    return _field(lambda: state_dir(program), doc, PATH, {"default_text": default_text})


def _field(default: Callable[[], T], doc: str, kind: Kind[Any], how: _How) -> T:
    described = Setting(kind=kind, default=default, doc=doc, **how)
    return dataclasses.field(default_factory=default, metadata={"setting": described})


def section(kind: type[T], doc: str) -> T:
    """A field that is a TOML table, described by another settings class."""
    return dataclasses.field(default_factory=kind, metadata={"section": kind, "doc": doc})


def sections_of(cls: type) -> Mapping[str, tuple[type, str]]:
    """The tables of a settings class: name to class and meaning."""
    fields = dataclasses.fields(cls)
    return {f.name: (f.metadata["section"], f.metadata["doc"]) for f in fields if "section" in f.metadata}


def settings_of(cls: type) -> Mapping[str, Setting]:
    """Every setting by its key, `port` or `log.level`, in the order of declaration, tables last."""
    own = {f.name: f.metadata["setting"] for f in dataclasses.fields(cls) if "setting" in f.metadata}
    for name, (inner, _) in sections_of(cls).items():
        own |= {f"{name}.{key}": described for key, described in settings_of(inner).items()}
    return own


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """The settings from values by key; keys that are left out get their defaults."""
    own = {key: value for key, value in values.items() if "." not in key}
    for name, (inner, _) in sections_of(cls).items():
        prefix = f"{name}."
        own[name] = build(
            inner, {key.removeprefix(prefix): each for key, each in values.items() if key.startswith(prefix)}
        )
    return cls(**own)


def value_of(settings: object, key: str) -> Any:
    """The value of a key such as `log.level`."""
    for name in key.split("."):
        settings = getattr(settings, name)
    return settings
