"""One attempt's output on its way from the pipes to the spool, and the pause when there is no room for it."""

import os
from collections.abc import Callable

from ..core.outcome import FullReason, Offsets, Stream
from ..spool import ReadOutcome, SpoolWriter
from .linux import boottime_us
from .processes import pipe_id
from .reactor import Reactor

TellOutput = Callable[[Offsets, bool], None]
"""Is told where the output ends by now, and whether that is final."""

RETRY_US = 1_000_000
"""How often a full disk is tried again."""

FINAL_TAKES_MAX = 64
"""What a pipe can still hold when its attempt ends fits into this many takes."""


class Output:
    """Reads both pipes as long as there is room. `changed` is called when a stream ends, waits, or goes on."""

    def __init__(self, reactor: Reactor, writer: SpoolWriter, changed: Callable[[], None]) -> None:
        self.pipe_ids: frozenset[str] = frozenset()
        self.is_final = False
        self._reactor = reactor
        self._writer = writer
        self._changed = changed
        self._pipes: dict[Stream, int] = {}
        self._paused: dict[Stream, FullReason] = {}
        self._waiting: tuple[Offsets, TellOutput] | None = None

    @property
    def starts(self) -> Offsets:
        """Answer from where on it is spooled."""
        return self._writer.starts

    @property
    def ends(self) -> Offsets:
        """Answer up to where it is spooled."""
        return self._writer.ends

    @property
    def is_open(self) -> bool:
        """Say whether anybody may still write to it."""
        return bool(self._pipes)

    @property
    def full(self) -> FullReason | None:
        """Say why it waits for room; None when it does not."""
        return next(iter(self._paused.values()), None)

    def open(self, pipes: dict[Stream, int]) -> None:
        """Read these pipes from now on; they are this object's to close."""
        self._pipes = dict(pipes)
        self.pipe_ids = frozenset(filter(None, map(pipe_id, pipes.values())))
        for stream in pipes:
            self._watch(stream)

    def read_on(self) -> None:
        """Try again to read what was left in the pipes for want of room."""
        for stream in tuple(self._paused):
            del self._paused[stream]
            self._watch(stream)
            self._take(stream)
        self._retry_full_disk()
        self._changed()

    def synced(self, offsets: Offsets) -> bool:
        """Delete what is synced; answer whether that gave room on the disk."""
        freed = self._writer.delete_below(offsets) > 0
        if freed and self._paused:
            self.read_on()
        return freed

    def wait(self, have: Offsets, tell: TellOutput) -> None:
        """Tell once when there is more than `have`, or no more comes; an earlier waiter is told now."""
        self._tell(is_due=True)
        self._waiting = (have, tell)
        self._tell()

    def end(self) -> tuple[Stream, ...]:
        """Take what the pipes hold right now, close them, and answer which of them had not ended."""
        for stream in tuple(self._pipes):
            for _ in range(FINAL_TAKES_MAX):
                if self._take(stream) is not ReadOutcome.SOME:
                    break
        cut = tuple(self._pipes)
        for stream in cut:
            self._close(stream)
        self._paused.clear()
        self._reactor.call_at(self.read_on, None)
        self._writer.seal()
        self.is_final = True
        return cut

    def tell_final(self) -> None:
        """Tell whoever waits that no more comes."""
        self._tell()

    def _watch(self, stream: Stream) -> None:
        self._reactor.call_when_readable(self._pipes[stream], lambda: self._ready(stream))

    def _ready(self, stream: Stream) -> None:
        if self._take(stream) in (ReadOutcome.END, ReadOutcome.FULL):
            self._retry_full_disk()
            self._changed()

    def _take(self, stream: Stream) -> ReadOutcome:
        taken = self._writer.take(stream, self._pipes[stream])
        if taken is ReadOutcome.SOME and self._waiting is not None:
            self._reactor.call_after_turn(self._tell)
        elif taken is ReadOutcome.END:
            self._close(stream)
        elif taken is ReadOutcome.FULL:
            assert self._writer.full is not None
            self._reactor.forget(self._pipes[stream])
            self._paused[stream] = self._writer.full
        return taken

    def _close(self, stream: Stream) -> None:
        fd = self._pipes.pop(stream)
        self._reactor.forget(fd)
        os.close(fd)

    def _retry_full_disk(self) -> None:
        """Nobody says when a disk has room again; that a spool has, the agent does."""
        is_needed = FullReason.DISK_FULL in self._paused.values()
        self._reactor.call_at(self.read_on, boottime_us() + RETRY_US if is_needed else None)

    def _tell(self, is_due: bool = False) -> None:
        if self._waiting is not None:
            have, tell = self._waiting
            if is_due or self.is_final or self.ends.exceeds(have):
                self._waiting = None
                tell(self.ends, self.is_final)
