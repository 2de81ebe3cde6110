"""What can be followed: a feed of messages that keeps its own place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import Enum, auto
from typing import Protocol, TypeVar

from gpufleet.errors import GpufleetError

M = TypeVar("M")


class MessageKind(Enum):
    """What a message was to its feed."""

    NEWS = auto()
    SIGN_OF_LIFE = auto()
    DOUBT = auto()
    """News that only an answer completes: ask now."""
    END = auto()
    """Nothing more will come: the follower is done."""
    BROKEN = auto()
    """It does not fit to what came before: open the stream again where it broke off."""


class Feed(Protocol[M]):
    """Something to follow. It keeps its own place, so that `open` goes on where the last stream broke off."""

    @property
    def ends_with_stream(self) -> bool:
        """Whether a stream that the scheduler closes in order is the end, as it is when nobody waits for more."""
        return False

    def open(self) -> AsyncIterator[M]:
        """A new stream from here on; cancelled by being closed."""
        ...

    async def ask(self) -> bool:
        """Ask the scheduler whether there is anything to follow yet; True when the follower is done by it.

        Raises GpufleetError when it does not answer, or answers that there is nothing.
        """
        ...

    def take(self, message: M) -> MessageKind:
        """Make use of a message: write it, remember how far it goes."""
        ...

    def forgives(self, problem: GpufleetError) -> bool:
        """Whether the stream can be opened again after this refusal, perhaps from another place."""
        return False
