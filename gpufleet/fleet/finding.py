"""What was found where something may be wrong, as a line of `gpuctl doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


class Verdict(Enum):
    """How it is."""

    OK = "ok"
    WARNING = "warn"
    FAILED = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and how to mend it."""

    what: str
    verdict: Verdict
    sentence: str
    fix: str = ""

    def as_object(self) -> dict[str, str]:
        """For JSON."""
        return {**asdict(self), "verdict": self.verdict.name}


def ok(what: str, sentence: str) -> Finding:
    """All is well."""
    return Finding(what, Verdict.OK, sentence)


def warning(what: str, sentence: str, fix: str) -> Finding:
    """It works, and will not for long, or not for all."""
    return Finding(what, Verdict.WARNING, sentence, fix)


def failed(what: str, sentence: str, fix: str) -> Finding:
    """It does not work."""
    return Finding(what, Verdict.FAILED, sentence, fix)
