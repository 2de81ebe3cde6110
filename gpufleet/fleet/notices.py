"""Who is told what is done meanwhile: a command prints it, a program logs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Notices(NamedTuple):
    """`say` is told what is worth a word in any case, `tell` what only somebody who looks on wants to know."""

    say: Callable[[str], None]
    tell: Callable[[str], None]
