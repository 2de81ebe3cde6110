"""Which file of a command is a script: its first word, or what an interpreter in front of it is given.

The command itself changes where the script comes through a pipe.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gpufleet.errors import invalid

SCRIPT_BYTES_READ_MAX = 65_536
"""How far into the file lines of options are looked for."""


class _Family(NamedTuple):
    """Interpreters that read their words alike."""

    names: re.Pattern[str]
    inline_letters: str
    """In an option of single letters: behind it stands no file, but a line, a module, or standard input."""
    takes_a_word: frozenset[str]
    """Options whose value is a word of its own, and so no script."""


_FAMILIES = (
    _Family(re.compile(r"(?:ba|da|z|k|mk|a|fi)?sh"), "cs", frozenset({"-o", "+o", "-O", "--rcfile", "--init-file"})),
    _Family(re.compile(r"(?:python|pypy)[0-9.]*"), "cm", frozenset({"-W", "-X", "--check-hash-based-pycs"})),
    _Family(re.compile(r"node(?:js)?"), "ep", frozenset({"-r", "--require", "--import", "--loader", "-C"})),
    _Family(re.compile(r"(?:perl|ruby)[0-9.]*"), "eE", frozenset({"-I", "-r", "-C"})),
    _Family(re.compile(r"(?:lua|Rscript|julia)[0-9.]*"), "eE", frozenset({"-l", "-L", "-p", "-t"})),
)

_LINE_CHARS_MAX = 4_096
"""A quoted line for the shell that is longer is no call of one script."""


class Script(NamedTuple):
    """A script, and the beginning of what is in it."""

    name: str
    """As it was typed, for messages."""
    head: bytes
    """At most SCRIPT_BYTES_READ_MAX bytes, without a byte order mark in front."""


def script_of(command: Sequence[str], folder: Path) -> Script | None:
    """The script that a command line runs, as this machine has it; None where it runs none.

    It is the first word (`./job.sh`, or a name that PATH finds), or the file that a shell, Python, Perl, Ruby, Lua,
    Node, R or Julia is given (`bash -e job.sh`, `env A=1 python -u train.py`), also in one quoted string. `folder` is
    where the job will run.
    """
    words = list(command)
    if len(words) == 1 and not (folder / words[0]).is_file():
        words = _words_of_line(words[0])
    words = _behind_env(words)
    if not words:
        return None
    family = next((each for each in _FAMILIES if each.names.fullmatch(Path(words[0]).name)), None)
    if family is not None:
        given = _given_to_interpreter(family, words[1:])
        return _read(given, folder, with_any_beginning=True) if given else None
    return _read(words[0], folder, with_any_beginning=False)


def _words_of_line(line: str) -> list[str]:
    """The words of a line for the shell that is one plain call; none of a line with operators or expansions."""
    if len(line) > _LINE_CHARS_MAX:
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return []
    is_plain = not any(set(word) & set("();<>|&`$\n") for word in words)
    return words[1:] if is_plain and words[:1] == ["exec"] else words if is_plain else []


def _behind_env(words: list[str]) -> list[str]:
    """Without `env` and its variables in front."""
    if not words or Path(words[0]).name != "env":
        return words
    rest = words[1:]
    while rest and (rest[0].startswith("-") or "=" in rest[0]):
        rest = rest[2:] if rest[0] in ("-u", "--unset", "-C", "--chdir") else rest[1:]
    return rest


def _given_to_interpreter(family: _Family, words: Sequence[str]) -> str:
    rest = list(words)
    while rest and rest[0][:1] in ("-", "+"):
        word = rest.pop(0)
        if word == "--":
            break
        takes_a_word = word in family.takes_a_word or (len(word) > 2 and f"-{word[-1]}" in family.takes_a_word)
        has_value = len(word) > 2 and word[:2] in family.takes_a_word  # `-Wignore`
        letters = set() if has_value or word.startswith(("--", "+")) else set(word[1:])
        if word in ("-", "--eval") or letters & set(family.inline_letters):
            return ""
        if takes_a_word and not has_value:
            rest = rest[1:]
    return rest[0] if rest else ""


def _read(name: str, folder: Path, *, with_any_beginning: bool) -> Script | None:
    try:
        with _file_of(name, folder).open("rb") as file:
            head = file.read(SCRIPT_BYTES_READ_MAX)
    except (OSError, ValueError):
        return None
    head = head.removeprefix(codecs.BOM_UTF8)
    # What is no text is no script, whatever bytes it happens to hold; what is called by itself begins with `#!`.
    is_script = b"\0" not in head if with_any_beginning else head.startswith(b"#!")
    return Script(name, head) if is_script else None


def _file_of(name: str, folder: Path) -> Path:
    here = folder / name
    if "/" in name or here.exists():
        return here
    found = (Path(each, name) for each in os.get_exec_path())
    return next((each for each in found if each.is_file() and os.access(each, os.X_OK)), here)


MARK = "#gpuctl"
LISTS = frozenset({"--nodelist", "--exclude", "--gpu-model", "--after"})
"""Options that take several values, of which those of the command line stand in place of the script's."""

Line = tuple[str, list[str]]
"""Where it stands (`train.sh:2`), and its words."""


def option_lines(script: Script | None, mark: str = MARK) -> list[Line]:
    """The options of each `#gpuctl` line. Raises INVALID_ARGUMENT for a line that is no list of options."""
    if script is None:
        return []
    return [(where, _words(where, text)) for where, text in marked_lines(script, mark)]


def marked_lines(script: Script, mark: str) -> Iterator[tuple[str, str]]:
    """Where each line with the mark stands, and its text behind the mark."""
    for number, line in enumerate(script.head.splitlines(), start=1):
        if line.startswith(mark.encode()) and line[len(mark) :][:1].isspace():
            yield f"{script.name}:{number}", line[len(mark) :].decode(errors="surrogateescape")


def before(own: Sequence[str], lines: Sequence[Line]) -> list[str]:
    """The words of the lines that stand before the command line's own options, so that these win."""
    replaced = {word.partition("=")[0] for word in own} & LISTS
    return [word for _, words in lines for word in _without(words, replaced)]


def _without(words: list[str], options: set[str]) -> list[str]:
    kept: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if name in options:
            is_value = not equals
        elif is_value:
            is_value = False
        else:
            kept.append(word)
    return kept


def _words(where: str, text: str) -> list[str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as problem:
        raise invalid(where, f"the {MARK} line cannot be read: {problem}") from None
    if "--" in words:
        raise invalid(where, f"a {MARK} line holds options only, and no --")
    return words
