"""Who is to be told of something, in the order in which they came.

A set would tell them in another order in each process; so a simulated run is the same each time.
"""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Listeners(dict[V, None]):
    """A set in the order in which its members came. One that comes again keeps its place."""

    def add(self, member: V) -> None:
        """It is told from now on."""
        self.setdefault(member, None)

    def discard(self, member: V) -> None:
        """It is told no more; one that is not there stays away."""
        self.pop(member, None)


def add(listeners: dict[K, Listeners[V]], key: K, member: V) -> None:
    """Add a member to the listeners of a key."""
    listeners.setdefault(key, Listeners()).add(member)


def drop(listeners: dict[K, Listeners[V]], key: K, member: V) -> None:
    """Take a member, if it is there, from the listeners of a key; without any the key takes no room."""
    members = listeners.get(key, Listeners())
    members.discard(member)
    if not members:
        listeners.pop(key, None)
