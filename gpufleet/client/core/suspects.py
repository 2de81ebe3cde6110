"""Items that may end the process of whoever computes them: what speaks against one, and when that is enough.

An item that was alone in its request when its worker broke off is a *suspect*: from then on it is asked while its
worker has nothing else of ours, so that it takes nothing with it, and so that what happens then is its own doing.
"""

from __future__ import annotations

from .outcomes import Break, ErrorKind, Failure


def broken_with(broken: tuple[str, ...], now: Break) -> tuple[str, ...]:
    """The starts of workers that broke off while they had an item alone in its request, with one more.

    The first one makes it a suspect, whatever else that worker had. Then only a worker counts that had nothing else,
    and a start of it once: one that goes on after it broke off did not end.
    """
    if now.start and now.start in broken:
        return broken
    return broken if broken and now.is_shared else (*broken, now.start)


def poison(last: Failure, count: int) -> Failure:
    """What an item is given up with after so many workers, the last of which failed so."""
    text = f"{count} workers ended while they had this item, which is not asked again: {last.message}"
    return Failure(ErrorKind.POISON, text, last.status)
