"""`gpufleet.toml` in the folder that goes along, or in the one we are in: what would be typed each time.

Its keys are the options of a job without their dashes, and each becomes words that stand before those that were typed,
as the lines of a script do: `gpus = 2` is `--gpus=2`. So the command line wins, and whoever reads an option reads this.

The file may come with somebody else's code. So it names nothing of this machine outside its folder, passes on none of
its variables, and asks for no secret: these are typed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpufleet.errors import invalid

from .job_options import JobOptions

Line = tuple[str, list[str]]
"""Where it stands (`gpufleet.toml:2`), and its words."""

FILE = "gpufleet.toml"
IGNORE = "ignore"
"""A key that is no option: lines as in .gpufleetignore, read where the folder is."""

TYPED_ALONE = {
    "env-all": "it would pass on all variables of whoever submits",
    "secret": "it would give a secret of whoever submits to a program",
    "rerun-failed": "it is no option of a job",
}
"""What only the person says who submits, and why."""

PATHS = frozenset({"upload", "file", "config"})
"""Options that read files of this machine."""

HOW = "See the keys with: gpuctl submit --help. They are its options, without the dashes."


def project_file(own: Sequence[str]) -> Path | None:
    """The file that counts for these words: in the folder of --upload, else here; None where there is none."""
    named = _value_of("--upload", own)
    file = Path(named if named and Path(named).is_dir() else ".") / FILE
    return file if file.is_file() else None


def keys() -> dict[str, bool]:
    """The options of a job without their dashes, and whether each is said without a value."""
    return {each.name.replace("_", "-"): isinstance(each.default, bool) for each in fields(JobOptions)}


def project_lines(file: Path) -> list[Line]:
    """The words of each key, and where it stands.

    Raises INVALID_ARGUMENT with the file and the line.
    """
    from gpufleet.config.files import line_of, parse_toml, read_text
    from gpufleet.config.layers import Problem, config_error
    from gpufleet.text.spelling import did_you_mean

    problems: list[Problem] = []
    text = read_text(file)
    document = parse_toml(text, file, problems)
    if problems:
        raise config_error(problems)
    found: list[Line] = []
    known = keys()
    for key, value in document.items():
        where, name = f"{file}:{line_of(text, key)}", key.replace("_", "-")
        if name == IGNORE:
            ignored_lines(file)
            continue
        if name in TYPED_ALONE:
            why = f"{key}: {TYPED_ALONE[name]}; only the command line says that"
            raise invalid(where, why, next_step=f"Take it out of {file}, and type --{name}.")
        if name not in known:
            raise invalid(where, f"{key} is no option of a job{did_you_mean(name, [*known, IGNORE])}", next_step=HOW)
        words = list(_words(where, key, name, value, is_flag=known[name]))
        if name in PATHS:
            words = [_inside(where, key, file.parent, word) for word in words]
        found.append((where, words))
    return found


def ignored_lines(file: Path) -> list[str]:
    """The lines of its key `ignore`. Raises INVALID_ARGUMENT, and CONFIG_INVALID for what is no TOML."""
    from gpufleet.config.files import line_of, parse_toml, read_text
    from gpufleet.config.layers import Problem, config_error

    problems: list[Problem] = []
    text = read_text(file)
    document = parse_toml(text, file, problems)
    if problems:
        raise config_error(problems)
    lines = document.get(IGNORE, [])
    if not isinstance(lines, list) or not all(isinstance(each, str) for each in lines):
        where = f"{file}:{line_of(text, IGNORE)}"
        raise invalid(where, "ignore is no list of texts", next_step='Write it as ["data/", "*.ckpt"].')
    return lines


def _words(where: str, key: str, name: str, value: Any, *, is_flag: bool) -> Iterator[str]:
    match value:
        case bool() if is_flag:
            if value:
                yield f"--{name}"
            elif name == "requeue":
                yield "--no-requeue"
        case _ if is_flag:
            raise invalid(where, f"{key} is said or not", next_step=f"Write {key} = true, or leave it out.")
        case str() | int() | float() if not isinstance(value, bool):
            yield from _word(where, key, name, value)
        case list():
            for each in value:
                if not isinstance(each, str | int | float) or isinstance(each, bool):
                    raise invalid(where, f"{key} holds something that is no text and no number", next_step=HOW)
                yield from _word(where, key, name, each)
        case dict() if all(isinstance(each, str | int | float) for each in value.values()):
            for part, each in value.items():
                yield f"--{name}={part}={each}"
        case _:
            raise invalid(where, f"{key} is no text, no number and no list of these", next_step=HOW)


def _word(where: str, key: str, name: str, value: object) -> Iterator[str]:
    if name == "env" and "=" not in str(value):
        why = f"env: {value} has no value, and would pass on that of whoever submits"
        raise invalid(where, why, next_step="Write it as NAME=VALUE, or type --env NAME.")
    yield f"--{name}={value}"


def _inside(where: str, key: str, folder: Path, word: str) -> str:
    """The word with its path as it is from here, which lies in the folder, also behind links."""
    option, _, value = word.partition("=")
    text, equals, name = value.partition("=")
    path = folder / text
    if text.startswith("~") or not path.resolve().is_relative_to(folder.resolve()):
        why = f"{key}: {text} lies outside of the folder of this file"
        raise invalid(where, why, next_step="Name something in the folder, or type it on the command line.")
    return f"{option}={path}{equals}{name}"


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """The last value that an option is given in these words."""
    found = None
    for number, word in enumerate(words):
        if word == option and number + 1 < len(words):
            found = words[number + 1]
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found
