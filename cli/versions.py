"""Which versions talk to each other."""

from __future__ import annotations


def own_version() -> str:
    """The version of this installation; `unknown` in a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpufleet")
    except PackageNotFoundError:
        return "unknown"


def skew_in_words(own: str, other: str, what: str) -> str:
    """A sentence when the versions differ; empty when they do not."""
    if own == other or "unknown" in (own, other):
        return ""
    return f"{what} has version {other}, and this gpuctl {own}: install the same on both"
