"""Signals that came ignored (`nohup make test &`): the tests go on ignoring them, and what they start does not."""

from __future__ import annotations

import signal
from types import FrameType

MAY_COME_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""What nohup, and a shell that starts something in the background, has a program ignore."""


def reset_ignored_signals() -> None:
    """Catch what is ignored and do nothing: a signal that is caught is the default again in what this process starts.

    A program that inherits an ignored signal can hardly be tested with it: no shell may even set a trap for it.
    """
    for number in MAY_COME_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _nothing)


def _nothing(number: int, frame: FrameType | None) -> None: ...
