"""The files that the environment of a job is made of: gpuctl and the scheduler look for them before a job is taken."""

from __future__ import annotations

from collections.abc import Collection

UV_FILES = ("pyproject.toml", "uv.lock")


def files_needed(tool: str, what: str) -> tuple[str, ...]:
    """The paths in the folder of the job's files that a tool (requirements, uv, conda or setup) reads."""
    if tool == "uv":
        return UV_FILES
    return (what,) if tool in ("requirements", "conda") else ()


def first_missing(tool: str, what: str, files: Collection[str], links: Collection[str]) -> str:
    """The first of these files that does not go with the job; empty where all do.

    A path that is a link, or leads through one, counts as there: only the node follows links.
    """
    for path in files_needed(tool, what):
        parts = path.split("/")
        above = {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
        if path not in files and above.isdisjoint(links):
            return path
    return ""
