"""Facts of this machine and installation that several programs tell: versions, and how many files may be open."""

from __future__ import annotations

from collections.abc import Iterable

UNLIMITED_FILES = 2**31 - 1
"""Told in place of no limit."""


def first_installed(distributions: Iterable[str]) -> str:
    """The version of the first of these distributions that is installed beside this program; empty without any.

    Read from the installation's metadata: nothing is imported, so that even torch costs no time and no memory.
    """
    from importlib.metadata import PackageNotFoundError, version

    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def open_files_max() -> int:
    """How many files this process may hold open."""
    import resource  # here: Windows has none, and workers run there, too

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED_FILES if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> int:
    """Let this process hold as many files open as it may; answers how many that are."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_max()
