"""The settings of a program that runs, which a reload changes while it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpufleet.config.merged import Resolved
from gpufleet.config.settings import build, settings_of, value_of

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that has another value now: its key, and both values as TOML."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload did: `applied` holds from now on, `waiting` after a restart."""

    applied: tuple[Change, ...]
    waiting: tuple[Change, ...]


class Live(Generic[S]):
    """The settings that hold now; `reload` reads them again from where they came.

    A reload that fails raises CONFIG_INVALID (or FILE_NOT_FOUND) and leaves every value as it was: a
    program never runs on half of a file.
    """

    def __init__(self, read: Callable[[], Resolved[S]]) -> None:
        self._read = read
        self._resolved = read()

    @property
    def now(self) -> S:
        """The settings; ask again after each reload, the object itself never changes."""
        return self._resolved.settings

    @property
    def resolved(self) -> Resolved[S]:
        """The settings with their origins."""
        return self._resolved

    def reload(self) -> Reloaded:
        """Read again; apply what can be applied while running."""
        fresh = self._read()
        applied: list[Change] = []
        waiting: list[Change] = []
        values: dict[str, object] = {}
        origins: dict[str, str] = {}
        for key, described in settings_of(type(self.now)).items():
            old, new = value_of(self.now, key), value_of(fresh.settings, key)
            takes_new = old == new or described.reloadable
            values[key] = new if takes_new else old
            origins[key] = (fresh if takes_new else self._resolved).origins[key]
            if old != new:
                change = Change(key, described.show(old), described.show(new))
                (applied if described.reloadable else waiting).append(change)
        self._resolved = Resolved(build(type(self.now), values), origins)
        return Reloaded(tuple(applied), tuple(waiting))
