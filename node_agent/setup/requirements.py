"""Whether a requirements file needs anything of the folder that it lies in.

One that does not is made of its own bytes alone, and shared by all who have the same. Where this errs, a build finds
less than it needs and fails; it never takes in what its key does not say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ARCHIVES = (".whl", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".zip")

PLAIN_OPTIONS = frozenset(
    {"--no-index", "--pre", "--prefer-binary", "--only-binary", "--no-binary", "--require-hashes", "--trusted-host"}
)
ADDRESS_OPTIONS = frozenset({"-i", "--index-url", "--pypi-url", "--extra-index-url", "-f", "--find-links"})
"""Followed by where to look: the folder, unless it is an address of the network."""

NETWORK = re.compile(r"(git\+|hg\+|svn\+|bzr\+)?(https?|ssh)://")
COMMENT = re.compile(r"(^|\s)#.*$")


def needs_its_folder(text: str) -> bool:
    """Whether a line names a file, a folder or something that this does not know."""
    return any(_is_local(line) for line in _lines(text))


def _lines(text: str) -> Iterator[str]:
    """Its lines, joined where one goes on, without comments."""
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in joined.splitlines():
        if bare := COMMENT.sub("", line).strip():
            yield bare


def _is_local(line: str) -> bool:
    if line.startswith("-"):
        name, value = _option(line)
        if name in ADDRESS_OPTIONS:
            return NETWORK.match(value) is None
        return name not in PLAIN_OPTIONS
    requirement = line.split(";", 1)[0].split(" --", 1)[0].strip()
    if NETWORK.match(requirement):
        return False
    name, at, address = requirement.partition("@")
    if at:
        return NETWORK.match(address.strip()) is None
    return name.startswith((".", "~")) or "/" in name or "\\" in name or name.lower().endswith(ARCHIVES)


def _option(line: str) -> tuple[str, str]:
    name, _, value = line.replace("=", " ", 1).partition(" ") if line.startswith("--") else line.partition(" ")
    if not line.startswith("--") and len(name) > 2:  # -fwheels
        name, value = name[:2], name[2:]
    return name, value.strip()
