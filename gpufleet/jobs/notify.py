"""How a job's `--notify` is read: the scheduler, which checks it, and the agent, which uses it, must agree."""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(target: str) -> bool:
    """Whether it is a URL, by its `scheme://`; everything else is a line for a shell."""
    return _URL.match(target) is not None
