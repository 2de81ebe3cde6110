"""Which folders of a node a job in a container may be shown: what its site says in [containers] mounts, and below that.

A path is resolved before it is compared. What was found is opened again through no link (`opened_without_links`), so
that a folder that is exchanged for a link meanwhile is refused and not followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..core.launch import Mount, RefusalReason
from .engine import ContainerTrouble

READ_ONLY = ":ro"
LINKS_MAX = 40
"""Links on the way to one path, as in Linux."""

_PART = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class AllowedMount:
    """A folder that a site allows, with all below it; `is_read_only`: to be read alone."""

    path: Path
    is_read_only: bool


def allowed_mounts(texts: Sequence[str]) -> tuple[AllowedMount, ...]:
    """Read `/data:ro`, `/scratch`."""
    return tuple(
        AllowedMount(Path(text.removesuffix(READ_ONLY)), is_read_only=text.endswith(READ_ONLY)) for text in texts
    )


def checked_mount(mount: Mount, allowed: Sequence[AllowedMount], never: Sequence[Path] = ()) -> Mount:
    """The mount as it is made, its source resolved. Blocks. Errors: ContainerTrouble MOUNT_REFUSED.

    What is `never` shown, whatever a site allows, is neither that nor what it lies in, or what lies in it.
    """
    try:
        source = Path(mount.source).resolve(strict=True)
    except (OSError, RuntimeError):
        # That it is not there is told only of what is allowed: nobody looks around on a node by --mount.
        _refuse_unless_below(mount.source, Path(mount.source), allowed)
        raise refused(mount.source, "the node has no such path") from None
    rule = _refuse_unless_below(mount.source, source, allowed)
    for path in map(_resolved, never):
        if path.is_relative_to(source) or source.is_relative_to(path):
            raise refused(mount.source, f"no container is shown {path}, by which it would have all of the node")
    return Mount(source=str(source), target=mount.target, is_read_only=mount.is_read_only or rule.is_read_only)


def opened_without_links(path: str) -> int:
    """A descriptor (O_PATH) of what an absolute path without links names. Errors: OSError, ELOOP or ENOTDIR at a link.

    Each part is opened in the folder before it, as openat2(2) with RESOLVE_NO_SYMLINKS does. Kernels before 5.6 and
    some containers lack that call.
    """
    descriptor = os.open("/", _PART | os.O_DIRECTORY)
    for part in Path(path).parts[1:]:
        try:
            inner = os.open(part, _PART, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return descriptor


def folder_that_users_can_change(source: str) -> str:
    """The first folder above a path in which an account other than root and this one can put something else in its
    place; empty where there is none. Errors: OSError."""
    own = (0, os.geteuid())
    for folder, inner in pairwise((*reversed(Path(source).parents), Path(source))):
        status = folder.lstat()
        can_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_kept = status.st_mode & stat.S_ISVTX and inner.lstat().st_uid in own
        if status.st_uid not in own or (can_write and not is_kept):
            return str(folder)
    return ""


def refused(asked: str, why: str) -> ContainerTrouble:
    """The refusal of what somebody typed."""
    return ContainerTrouble(RefusalReason.MOUNT_REFUSED, f"--mount {asked}: {why}")


def _refuse_unless_below(asked: str, source: Path, allowed: Sequence[AllowedMount]) -> AllowedMount:
    rules = [each for each in allowed if (root := _root_of(each)) is not None and source.is_relative_to(root)]
    if not rules:
        for each in allowed:
            if Path(asked).is_relative_to(each.path) and _root_of(each) is None:
                raise refused(asked, f"{each.path} in [containers] mounts leads through a link of another account's")
        lines = ", ".join(f'"{each.path}{READ_ONLY if each.is_read_only else ""}"' for each in allowed)
        more = f'[{lines + ", " if lines else ""}"{asked}"]'
        raise refused(
            asked,
            "the node's site does not allow it; who runs the node adds it to [containers] in "
            f"agent.toml: mounts = {more}",
        )
    return max(rules, key=lambda each: len(each.path.parts))


def _root_of(rule: AllowedMount) -> Path | None:
    """What a site's path names. A link on the way counts only if it is root's or the agent's, as another account could
    lead it to all of the node; None for one of another account."""
    own = (0, os.geteuid())
    todo, real, links = list(reversed(rule.path.parts[1:])), Path("/"), 0
    while todo:
        part = todo.pop()
        if part == "..":
            real = real.parent
            continue
        try:
            status = (real / part).lstat()
        except OSError:
            return rule.path  # nothing is there that could be shown
        if not stat.S_ISLNK(status.st_mode):
            real /= part
            continue
        links += 1
        if status.st_uid not in own or links > LINKS_MAX:
            return None
        target = (real / part).readlink()
        real = Path("/") if target.is_absolute() else real
        todo.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return real


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path
