"""Which files the repository's texts and comments name: the pages, and the comments and docstrings of its code."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
MADE = ("gen/", "gateway/static/", "bench/results/")
"""What is made from other files, or written by a run."""

OF_TYPESCRIPT = (".ts", ".css", ".html")

LINK = re.compile(r"\]\((?!\w+:)(?P<file>[^)#\s]*)(?:#(?P<heading>[^)\s]*))?\)")
"""A link of a page to a file, a heading, or a heading of a file."""

CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

FILE = re.compile(
    r"(?<![\w./~$*-])(?:(?:[\w.-]+/)*[\w-]+\.(?:md|py|ts|proto)|(?:tests|docs|bench|protos)/[\w./-]+\.\w+)(?![\w/-])"
)
"""A name such as `core/decide.py` in a text, or of any file where it begins with a folder of the root."""

FOLDER = re.compile(r"(?<![\w./~$*-])(?:[\w-]+/)+(?![\w.*<{-])")
"""A name such as `tests/rules/` in a text."""


@cache
def files() -> frozenset[str]:
    """Every file of the repository that somebody wrote, from its root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return frozenset(name for name in listed if name and not name.startswith(MADE) and (ROOT / name).is_file())


@cache
def _tails() -> frozenset[str]:
    """Each file and each folder by every way to name it: `scheduler/core/decide.py`, `core/decide.py`, `decide.py`."""
    paths = {PurePosixPath(name) for name in files()}
    folders = {folder for path in paths for folder in path.parents}
    named = [(path, "") for path in paths] + [(folder, "/") for folder in folders]
    return frozenset("/".join(path.parts[at:]) + end for path, end in named for at in range(len(path.parts)))


def pages() -> list[str]:
    """The texts for people."""
    return sorted(name for name in files() if name.endswith(".md"))


def sources() -> list[str]:
    """The files with comments."""
    return sorted(name for name in files() if name.endswith((".py", ".proto", *OF_TYPESCRIPT)))


def is_there(name: str) -> bool:
    """Whether a text may name a file or folder so: by its path from the root, or by the end of it."""
    return name in _tails() or name.startswith(MADE)


def headings(page: str) -> set[str]:
    """The anchors of a page, as GitHub and GitLab make them."""
    text = FENCE.sub("", (ROOT / page).read_text())
    titles = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: str, text: str) -> Iterator[str]:
    """Links of a page that lead nowhere."""
    for link in LINK.finditer(FENCE.sub("", text)):
        file, heading = link["file"], link["heading"]
        target = (ROOT / page).parent / file if file else ROOT / page
        if not target.exists() or (heading and heading not in headings(target.resolve().relative_to(ROOT).as_posix())):
            yield link[0]


def named_in_page(text: str) -> Iterator[str]:
    """The files and folders that a page names as code, outside what is to be typed."""
    for code in CODE.findall(FENCE.sub("", text)):
        if FILE.fullmatch(code.partition("::")[0]):
            yield code.partition("::")[0]
        elif FOLDER.fullmatch(code):
            yield code


def named_in_source(name: str, text: str) -> Iterator[str]:
    """The files that the comments and docstrings of a file name."""
    for comment in comments(name, text):
        yield from FILE.findall(comment)


def comments(name: str, text: str) -> Iterator[str]:
    """The comments of a file; of Python the docstrings as well."""
    if not name.endswith(".py"):
        yield from re.findall(r"/\*.*?\*/|<!--.*?-->|(?<!:)//[^\n]*", text, re.DOTALL)
        return
    yield from (
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    )
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
