"""Exit codes of commands that have a job's: those that are not the job's own."""

from __future__ import annotations

TIME_LIMIT = 124
"""Its time limit ended it, as timeout(1) has it."""

OWN_FAILURE = 125
"""It ended without a code, or whoever followed it failed."""

SIGNALLED = 128
"""A process that a signal ended gives this plus the signal's number."""
