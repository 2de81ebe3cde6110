"""Which program a host name stands for: `chat.gpus.example` is the program `chat` of the gateway `gpus.example`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What a model may be called."""


@dataclass(frozen=True, slots=True)
class ProgramHost:
    """A program's own host. `home` is where the gateway's pages are, with the port if there is one."""

    name: str
    home: str


def program_at(host: str, homes: Iterable[str]) -> ProgramHost | None:
    """The program that a Host header names; None for the gateway's own pages. Browsers write hosts in small letters, so
    that a program with a capital in its name has none. Where one home lies below another, no program of the upper one
    has the lower one's host, nor those of its programs."""
    whole, colon, port = host.lower().partition(":")
    homes = tuple(homes)
    if whole in homes:
        return None
    for home in sorted(homes, key=len, reverse=True):
        name = whole.removesuffix(f".{home}")
        if name != whole and NAME.fullmatch(name):
            return ProgramHost(name, home + colon + port)
    return None


def is_home(host: str, homes: Iterable[str]) -> bool:
    """Whether programs have hosts below this one."""
    return host.lower().partition(":")[0] in homes


def is_path(text: str) -> bool:
    """Whether a text is a path of the host that it is asked for at, and no address of another one.

    Browsers take a backslash for a slash, and leave out tabs and line ends.
    """
    return re.fullmatch(r"/(?![/\\])[!-\[\]-~]*", text) is not None
