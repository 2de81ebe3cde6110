"""From what a job asks for to what is to be done: a key, a script, and the files that its builder sees.

The key is made of all that decides what comes of it: the tool and its version, the interpreter, the machine's platform,
and the bytes of exactly the files that the builder is shown. A free line may do anything with the network, so that what
comes of it is its user's alone; so is all on a node that keeps no users apart.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpufleet.jobs.environment_files import UV_FILES

from ..core.commands import LaunchAttempt
from ..core.launch import EnvironmentTool, Refusal, RefusalReason
from . import tools
from .requirements import needs_its_folder

FORMAT = 1
"""Another one where what is made of the same key changes."""

FILE_BYTES_MAX = 16 * 2**20
"""What says what is in an environment is no larger."""

KEY_DIGITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an environment is made.

    `script` is for /bin/sh, with `$GPUFLEET_ENVIRONMENT` as the empty folder to be filled. `files` are the bytes that
    its working directory holds, by their names; with `has_folder` it is a copy of all of the job's files. `user` is
    whose it is alone, empty for everybody's. `in_words` is for people.
    """

    key: str
    script: str
    in_words: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    has_folder: bool = False
    user: str = ""


class NotMade(Exception):
    """An environment cannot be made."""

    def __init__(self, detail: str, reason: RefusalReason = RefusalReason.SETUP_FAILED) -> None:
        super().__init__(detail)
        self.refusal = Refusal(reason, detail)


def recipe_of(command: LaunchAttempt, folder: Path, *, is_shared: bool) -> Recipe:
    """What is to be done for a launch whose files lie in `folder`, where nothing of a job has been yet.

    `is_shared`: whether users are kept apart here, so that what one has made can be another's. Errors: NotMade,
    OSError.
    """
    asked = command.environment
    assert asked is not None
    python = tools.interpreter()
    if python is None:
        raise NotMade("this node has no Python 3 with venv and ensurepip to make environments of")
    versions = [python.path, python.version]
    venv = f'{shlex.quote(python.path)} -m venv "$GPUFLEET_ENVIRONMENT"'
    files: dict[str, bytes] = {}
    has_folder, user, what = False, "" if is_shared else command.user, ""
    match asked.tool:
        case EnvironmentTool.REQUIREMENTS:
            content = _read(folder, asked.what)
            has_folder = needs_its_folder(content.decode(errors="replace"))
            name = asked.what if has_folder else "requirements.txt"
            files = {} if has_folder else {name: content}
            what = name if has_folder else ""
            in_words = f"pip install -r {asked.what}"
            install = f'"$GPUFLEET_ENVIRONMENT/bin/python" -m pip install -r {shlex.quote(name)}'
            script = f"{venv}\n{install}"
        case EnvironmentTool.UV:
            uv = _needed(tools.uv(), "uv", "--requirements")
            versions.append(uv.version)
            files = {name: _read(folder, name) for name in UV_FILES}
            in_words = "uv sync"
            sync = f"{shlex.quote(uv.path)} sync --frozen --no-install-project --python {shlex.quote(python.path)}"
            script = f'{venv} --without-pip\nUV_PROJECT_ENVIRONMENT="$GPUFLEET_ENVIRONMENT" {sync}'
        case EnvironmentTool.CONDA:
            conda = _needed(tools.conda(), "micromamba, mamba or conda", "--requirements")
            versions.append(conda.version)
            files = {"environment.yml": _read(folder, asked.what)}
            program = shlex.quote(conda.path)
            is_micro = Path(conda.path).name == "micromamba"
            in_words = f"{Path(conda.path).name} env create -f {asked.what}"
            create = f"{program} create -y" if is_micro else f"{program} env create"
            script = f'{create} -p "$GPUFLEET_ENVIRONMENT" -f environment.yml'
        case EnvironmentTool.SETUP:
            has_folder, user, what, in_words = True, command.user, asked.what, asked.what
            script = f"{venv}\n{asked.what}"
        case None:
            raise NotMade("this node's agent does not know by what to make it; it is older than the scheduler")
    made_of = {
        "format": FORMAT,
        "tool": asked.tool.value,
        "what": what,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())},
        "folder": _folder_digest(command) if has_folder else "",
        "versions": versions,
        "platform": [platform.machine(), platform.release().partition("-")[0]],
        "is_private": bool(user) or not is_shared,
        "user": user,
    }
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]
    return Recipe(key=key, script=script, in_words=in_words[:200], files=files, has_folder=has_folder, user=user)


def _read(folder: Path, name: str) -> bytes:
    """A file of the job's: within the folder, also behind links, and not too large."""
    path, inside = (folder / name).resolve(), folder.resolve()
    if not path.is_relative_to(inside) or not path.is_file():
        raise NotMade(f"{name} is not among the job's files; name it by its path in the folder that goes along")
    if path.stat().st_size > FILE_BYTES_MAX:
        raise NotMade(f"{name} is larger than {FILE_BYTES_MAX:,} bytes")
    return path.read_bytes()


def _needed(tool: tools.Tool | None, name: str, other: str) -> tools.Tool:
    if tool is None:
        raise NotMade(f"this node has no {name}; ask for it to be installed there, or use {other}")
    return tool


def _folder_digest(command: LaunchAttempt) -> str:
    """A digest of all files of the job: another file gives another digest."""
    parts = [command.folder.digest if command.folder else ""]
    parts += [f"{each.path}\0{each.digest}\0{each.is_executable}" for each in command.files]
    parts += [f"{each.job}\0{each.pattern}\0{each.name}" for each in command.inputs]  # what an ended job left stays so
    return hashlib.sha256("\0\0".join(parts).encode()).hexdigest()
