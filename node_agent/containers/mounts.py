"""Which folders of a node a job in a container may be shown: what its site says in [containers] mounts, and below that.

A path is resolved before it is compared, and what was found is what is shown: no link and no ".." leads out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.launch import Mount, RefusalReason
from .engine import ContainerTrouble

READ_ONLY = ":ro"


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
        raise ContainerTrouble(
            RefusalReason.MOUNT_REFUSED, f"--mount {mount.source}: the node has no such path"
        ) from None
    rule = _refuse_unless_below(mount.source, source, allowed)
    for path in map(_resolved, never):
        if path.is_relative_to(source) or source.is_relative_to(path):
            why = f"--mount {mount.source}: no container is shown {path}, by which it would have all of the node"
            raise ContainerTrouble(RefusalReason.MOUNT_REFUSED, why)
    return Mount(source=str(source), target=mount.target, is_read_only=mount.is_read_only or rule.is_read_only)


def _refuse_unless_below(asked: str, source: Path, allowed: Sequence[AllowedMount]) -> AllowedMount:
    rules = [each for each in allowed if source.is_relative_to(_resolved(each.path))]
    if not rules:
        lines = ", ".join(f'"{each.path}{READ_ONLY if each.is_read_only else ""}"' for each in allowed)
        more = f'[{lines + ", " if lines else ""}"{asked}"]'
        raise ContainerTrouble(
            RefusalReason.MOUNT_REFUSED,
            f"--mount {asked}: the node's site does not allow it; who runs the node adds it to [containers] in "
            f"agent.toml: mounts = {more}",
        )
    return max(rules, key=lambda each: len(each.path.parts))


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path
