"""Finds the descendants of attempts that left their group. As a subreaper the keeper inherits every orphan.

A process whose ancestors have died is the keeper's own child. It therefore can be neither overlooked nor,
until it is reaped, confused with another: its pid stays taken. Whose it is, its session tells, or the key in
its environment, or a pipe of the attempt it still holds; and when only one attempt is left, it is that
one's.
"""

import os
from collections.abc import Iterable
from typing import Protocol

from ..core.outcome import AttemptKey
from .processes import children, environment_of, holds_pipe, look_at
from .spawn import KEY_VARIABLE, key_value


class Parent(Protocol):
    """What is asked of an attempt that has not ended."""

    @property
    def key(self) -> AttemptKey:
        """Answer its key."""
        ...

    @property
    def pid(self) -> int:
        """Answer its leader's pid, which is its group's and session's id too."""
        ...

    @property
    def pipe_ids(self) -> frozenset[str]:
        """Answer the pipes it still reads."""
        ...


class Strays:
    """Knows which child of the keeper, other than the leaders, belongs to which attempt."""

    def __init__(self, keeper_id: str) -> None:
        self._prefix = os.fsencode(key_value(keeper_id, ""))
        self._owners: dict[int, AttemptKey] = {}

    def of(self, parent: Parent, living: Iterable[Parent]) -> list[int]:
        """List the strays of an attempt; `living` are all that have not ended, this one included."""
        parents = list(living)
        leaders = {each.pid for each in parents}
        return [pid for pid in children() if pid not in leaders and self._owner(pid, parents) == parent.key]

    def reaped(self, pid: int) -> None:
        """Take in that a child is gone; its pid may come back as another process."""
        self._owners.pop(pid, None)

    def _owner(self, pid: int, parents: list[Parent]) -> AttemptKey | None:
        owner = self._owners.get(pid)
        if owner is None:
            owner = self._find_owner(pid, parents)
            if owner is not None:
                self._owners[pid] = owner
        return owner

    def _find_owner(self, pid: int, parents: list[Parent]) -> AttemptKey | None:
        if len(parents) == 1:
            return parents[0].key
        process = look_at(pid)
        if process is None:
            return None
        for parent in parents:
            if parent.pid in (process.session_id, process.group_id):
                return parent.key
        value = environment_of(pid).get(os.fsencode(KEY_VARIABLE), b"")
        if value.startswith(self._prefix):
            return AttemptKey.parse(os.fsdecode(value[len(self._prefix) :]))
        return next((parent.key for parent in parents if holds_pipe(pid, parent.pipe_ids)), None)
