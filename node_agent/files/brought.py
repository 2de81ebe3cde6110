"""What a rank brings: what it leaves for its user (`--download`), and what it keeps for the next attempt (`--keep`).

What is in both is sent once. What it keeps counts only whole: an older copy is better than half of a newer one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from gpufleet.jobs.results import PROBLEM_CHARS_MAX

from .leavings import Left, Plan, look


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """`kept_manifest` is None where nothing is kept, and `kept_problem` says why where something was to be (`keeps`).

    With `is_checkpoint` the rank goes on running, and leaves nothing yet.
    """

    left: Left = field(default_factory=Left)
    keeps: bool = False
    kept_manifest: bytes | None = None
    kept_problem: str = ""
    kept_plans: dict[str, Plan] = field(default_factory=dict)
    kept_count: int = 0
    kept_bytes: int = 0
    is_checkpoint: bool = False
    is_question: bool = False
    """Whether it is only asked if anything of it is wanted."""
    set_aside: Left | None = None
    """What was left, while what is kept is sent alone."""

    @property
    def plans(self) -> dict[str, Plan]:
        """What each chunk of it is made of, by its digest."""
        return {**self.kept_plans, **self.left.plans}

    @property
    def size_bytes(self) -> int:
        """What it takes on the node, about: what is in both counts once if it is all of one."""
        return max(self.left.size_bytes, self.kept_bytes)

    @property
    def has_something(self) -> bool:
        """Whether there would be less to send without a part of it."""
        return bool(self.left.manifest) or self.kept_manifest is not None

    def nothing(self, why: str) -> Brought:
        """The same without a file, and why."""
        return replace(self._without_left(why), set_aside=None)._without_kept(why)

    def less(self, why: str) -> Brought:
        """What is sent next where this was refused: what is kept goes before what was left, and that before nothing."""
        if self.left.manifest and self.kept_manifest is not None:
            return replace(self._without_left(why), set_aside=self.left)
        if self.set_aside is not None:
            return replace(self._without_kept(why), left=self.set_aside, set_aside=None)
        return self.nothing(why)

    def _without_left(self, why: str) -> Brought:
        return replace(self, left=Left(problems=[f"nothing is stored: {why}"[:PROBLEM_CHARS_MAX]]))

    def _without_kept(self, why: str) -> Brought:
        return replace(self, kept_manifest=None, kept_plans={}, kept_problem=self._kept_problem(why))

    def _kept_problem(self, why: str) -> str:
        return (self.kept_problem or why)[:PROBLEM_CHARS_MAX] if self.keeps else ""


def brought_of(root: Path, lines: tuple[str, ...], keep: tuple[str, ...], *, is_checkpoint: bool = False) -> Brought:
    """Look at a rank's folder. Errors: OSError where it cannot be opened, Changed."""
    left = look(root, lines) if lines else Left()
    if not keep:
        return Brought(left=left)
    kept = look(root, keep)
    if kept.cut:
        return Brought(left=left, keeps=True, kept_problem=kept.cut[:PROBLEM_CHARS_MAX], is_checkpoint=is_checkpoint)
    return Brought(
        left=left,
        keeps=True,
        kept_manifest=kept.manifest,
        kept_plans=kept.plans,
        kept_count=kept.file_count,
        kept_bytes=kept.size_bytes,
        is_checkpoint=is_checkpoint,
    )
