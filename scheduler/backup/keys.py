"""The small files beside the database: its keys, and the tokens of the first start."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file

from ..first_start import FIRST_TOKENS
from ..secret_box import KEY_FILE as SECRETS_KEY_FILE
from ..worker_secrets import KEY_FILE as WORKERS_KEY_FILE
from .archive import Archive

PREFIX = "keys"
NAMES = (WORKERS_KEY_FILE, SECRETS_KEY_FILE, *(f"{name}.token" for name, _ in FIRST_TOKENS))
KEY_FILE_BYTES_MAX = 4096


def place_of(settings: SchedulerSettings, name: str) -> Path:
    """Where the file of that name belongs."""
    if name == SECRETS_KEY_FILE and settings.secrets.key_file is not None:
        return settings.secrets.key_file
    return settings.data / name


def copied(settings: SchedulerSettings, add: Callable[[str, bytes, int], None]) -> list[str]:
    """Add each of the files that are in the data folder. Errors: BACKUP_FAILED.

    A key of secrets that the site keeps apart from the database is left apart.
    """
    found = []
    for name in NAMES:
        if place_of(settings, name) != settings.data / name:
            continue
        content = _read(settings.data / name)
        if content is not None:
            add(f"{PREFIX}/{name}", content, len(content))
            found.append(name)
    return found


@dataclass(slots=True)
class KeyPlan:
    """What is to be put where; `others` are files that are there and differ."""

    missing: dict[Path, bytes] = field(default_factory=dict)
    others: dict[Path, bytes] = field(default_factory=dict)
    kept: dict[Path, Path] = field(default_factory=dict)
    """Where those that differed are now, by their names, once they are replaced."""
    _made: list[Path] = field(default_factory=list)

    def put(self, stamp: str) -> None:
        """Put the files in their places; those that differ are kept beside them. Errors: OSError."""
        for path, content in self.others.items():
            aside = path.with_name(f"{path.name}.{stamp}")
            if not aside.exists():  # a restore that is run again has done so already
                os.link(path, aside)
            self.kept[path] = aside
            replace_file(path, content)
        for path, content in self.missing.items():
            self._made.append(path)
            replace_file(path, content)

    def take_back(self) -> None:
        """Let all be as it was before. Errors: OSError."""
        for path, aside in self.kept.items():
            aside.replace(path)
        for path in self._made:
            path.unlink(missing_ok=True)


def planned(archive: Archive, settings: SchedulerSettings) -> KeyPlan:
    """What putting the keys of a backup back would do; nothing is changed. Errors: BACKUP_INVALID, BACKUP_FAILED."""
    plan = KeyPlan()
    for member in archive.manifest.members:
        folder, _, name = member.name.partition("/")
        if folder != PREFIX:
            continue
        if name not in NAMES or member.bytes > KEY_FILE_BYTES_MAX:
            raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: {member.name} is no key that a scheduler has")
        content, path = archive.read(member.name), place_of(settings, name)
        there = _read(path)
        if there is None:
            plan.missing[path] = content
        elif there != content:
            plan.others[path] = content
    return plan


def _read(path: Path) -> bytes | None:
    """A small file; None where there is none. Errors: BACKUP_FAILED."""
    try:
        with path.open("rb") as file:
            content = file.read(KEY_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise GpufleetError(Reason.BACKUP_FAILED, f"{path} cannot be read: {problem.strerror}") from None
    if len(content) > KEY_FILE_BYTES_MAX:
        raise GpufleetError(Reason.BACKUP_FAILED, f"{path} is too long to be a key")
    return content
