"""Slots: ranks that take the same place on the node one after the other, begun as soon as the one before has ended.

The scheduler names a slot by the first attempt that was in it, and each launch of another one says whose slot it waits
for. A slot is noted with each launch, so that an agent that starts anew knows what of it still runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpufleet.jobs.runs import RankKey, StopCause

from .outcome import AttemptEnd

HANDS_ON = frozenset({None, StopCause.CANCELLED, StopCause.TIME_LIMIT})
"""Ends after which the next of the slot begins: it ended by itself, or nobody else was to have its place."""

_SLOT = re.compile(r" slot=(?P<slot>[0-9a-f.]+)")


@dataclass(slots=True)
class Slots:
    """The ranks of each slot in the order in which they came, until each has ended or is not to be started any more."""

    _ranks: dict[RankKey, dict[RankKey, None]] = field(default_factory=dict)
    _slot_of: dict[RankKey, RankKey] = field(default_factory=dict)

    def enter(self, slot: RankKey, key: RankKey) -> None:
        """A rank takes its place behind those of the slot that are there; one that has its place keeps it."""
        self._slot_of.setdefault(key, slot)
        self._ranks.setdefault(self._slot_of[key], {})[key] = None

    def is_first(self, key: RankKey) -> bool:
        """Whether nobody is before a rank that has entered."""
        return next(iter(self._ranks[self._slot_of[key]])) == key

    def leave(self, key: RankKey) -> RankKey | None:
        """A rank has ended, or will not be started; answers who is the first of its slot now, if another one is."""
        slot = self._slot_of.pop(key, None)
        if slot is None:
            return None
        ranks = self._ranks[slot]
        was_first = next(iter(ranks)) == key
        del ranks[key]
        if not ranks:
            del self._ranks[slot]
        return next(iter(ranks), None) if was_first else None

    def behind(self, key: RankKey) -> tuple[RankKey, ...]:
        """Those that came into the slot of a rank after it."""
        slot = self._slot_of.get(key)
        ranks = () if slot is None else tuple(self._ranks[slot])
        return ranks[ranks.index(key) + 1 :] if ranks else ()


def hands_on(end: AttemptEnd) -> bool:
    """Whether the next of the slot may begin after this end; else what was before it was to make room for others.

    Nor does it where something of it may still be there.
    """
    return end.stop_cause in HANDS_ON and end.loss is None and not end.processes_left


def noted_slot(slot: RankKey | None) -> str:
    """What a launch notes of its slot."""
    return "" if slot is None else f" slot={slot.name}"


def slot_in(note: str) -> RankKey | None:
    """The slot that a launch has noted; None for its own, as where what stands there is none."""
    found = _SLOT.search(note)
    try:
        return None if found is None else RankKey.parse(found["slot"])
    except ValueError:
        return None
