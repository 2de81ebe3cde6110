"""Which uids are this agent's alone: each agent of a machine claims its range, and others take another one.

CLAIMS/FIRST-COUNT     the data folder whose agent gives these uids to users; locked while that agent runs

A claim counts while its agent runs, and after that as long as its folder is there and has given any: what a user has
written stays that user's.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpufleet.config.agent_settings import IsolationSettings
from gpufleet.errors import GpufleetError, Reason

from .accounts import UIDS_FILE, read_uids

_log = logging.getLogger(__name__)

LOCK_FILE = "lock"
RANGES_MAX = 100
"""So many ranges, one behind the other, are looked at for one that is nobody's."""


@dataclass(frozen=True, slots=True)
class UidRange:
    """The uids from `first` on that an agent gives to users. `claim_fd` holds the claim for as long as it is open."""

    first: int
    count: int
    claim_fd: int | None = None

    @property
    def last(self) -> int:
        """The last of them."""
        return self.first + self.count - 1

    def meets(self, other: UidRange) -> bool:
        """Whether any uid is in both."""
        return self.first <= other.last and other.first <= self.last


def claim_range(settings: IsolationSettings, folder: Path) -> UidRange:
    """The range of this agent, claimed until it ends. Errors: CONFIG_INVALID, where what it needs is another agent's.

    One that nobody chose moves behind those of others; one that was chosen, or of which uids were given, does not.
    """
    folder, claims = folder.absolute(), Path(settings.uid_claims)
    wanted = UidRange(settings.uid_first, settings.uid_count)
    is_chosen = settings.uid_first != IsolationSettings().uid_first
    given: Collection[int] = ()
    try:
        given = read_uids(folder).values()
    except (OSError, ValueError, AttributeError):
        is_chosen = True  # each launch is refused until somebody has mended it; then it has to be where it was
    try:
        claims.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(claims):
            others = dict(_claims_of_others(claims, folder))
            for candidate in _candidates(wanted, given, is_chosen=is_chosen):
                if not any(candidate.meets(other) for other in others):
                    return _claimed(claims, candidate, folder)
    except OSError as problem:
        _log.warning("whether another agent of this machine gives the same uids to users is not known: %s", problem)
        return wanted
    found = next(iter(_candidates(wanted, given, is_chosen=is_chosen)))
    whose = next((owner for other, owner in others.items() if found.meets(other)), Path())
    behind = max(other.last for other in others) + 1
    raise GpufleetError(
        Reason.CONFIG_INVALID,
        f"isolation.uid_first: uids {found.first} to {found.last} are those of another agent of this machine, whose "
        f"data folder is {whose}",
        next_step=f"Say uid_first = {behind} in the agent.toml of one that has run no jobs yet.",
    )


def _candidates(wanted: UidRange, given: Collection[int], *, is_chosen: bool) -> Iterator[UidRange]:
    if given:
        # It was moved before, maybe, and has to be what it was.
        behind = max(0, min(given) - wanted.first) // wanted.count
        yield UidRange(wanted.first + (0 if is_chosen else behind) * wanted.count, wanted.count)
        return
    for number in range(1 if is_chosen else RANGES_MAX):
        yield UidRange(wanted.first + number * wanted.count, wanted.count)


def _claims_of_others(claims: Path, own: Path) -> Iterator[tuple[UidRange, Path]]:
    for file in sorted(claims.iterdir()):
        first, _, count = file.name.partition("-")
        if not (first.isdecimal() and count.isdecimal()):
            continue
        with file.open("rb") as opened:
            owner = Path(os.fsdecode(opened.read()))
            if owner != own and (_is_locked(opened.fileno()) or (owner / UIDS_FILE).exists()):
                yield UidRange(int(first), int(count)), owner


def _claimed(claims: Path, chosen: UidRange, folder: Path) -> UidRange:
    for file in claims.iterdir():
        if file.name != LOCK_FILE and file.read_bytes() == os.fsencode(folder):
            file.unlink()
    fd = os.open(claims / f"{chosen.first}-{chosen.count}", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, os.fsencode(folder))
    return UidRange(chosen.first, chosen.count, fd)


def _is_locked(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    return True


@contextmanager
def _alone(claims: Path) -> Iterator[None]:
    """While no other agent looks at claims or makes one."""
    fd = os.open(claims / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
