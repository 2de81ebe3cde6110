"""When a request that failed is sent again."""

from __future__ import annotations

BACKOFF_DOUBLINGS_MAX = 30
"""Beyond these the pause is its longest anyhow, and the power would grow without bound."""


def backoff_s(retries: int, *, first_s: float, longest_s: float, chance: float) -> float:
    """The pause before retry number `retries` (from 0), in seconds: it doubles up to `longest_s`.

    `chance`, 0 to 1, takes up to half of it away, so that clients which failed together do not come back together.
    """
    whole_s = min(longest_s, first_s * 2.0 ** min(retries, BACKOFF_DOUBLINGS_MAX))
    return whole_s * (1.0 - 0.5 * chance)
