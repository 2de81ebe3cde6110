"""Installs and removes a service: checks everything, then changes as little as there is to change, and says so."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, invalid

from .systemd import START_SECONDS_MAX, Systemd
from .units import FILE_OPTIONS, MARK, MODULES, Unit

CHECK_SECONDS_MAX = 60
OWN = ("--data", "--config")
"""Options of a program that its service has of its own."""

PRIVATE = (Path("/tmp"), Path("/var/tmp"))
"""A hardened service has these of its own (`PrivateTmp=` in units.py) and does not see those of the machine."""

NEXT_STEP = "Install gpufleet where all may read it, as sudo pipx install --global gpufleet does"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedService:
    """What somebody typed."""

    program: str
    options: tuple[str, ...] = ()
    config: Path | None = None
    account: str = ""
    is_of_user: bool = False
    starts: bool = True
    only_shows: bool = False

    @property
    def line(self) -> str:
        """The command again."""
        words = ["gpuctl", "install", self.program]
        words += ["--config", str(self.config)] if self.config else []
        words += ["--account", self.account] if self.account else []
        words += [] if self.starts else ["--no-start"]
        return shlex.join([*words, "--", *self.options] if self.options else words)


def install_service(wanted: WantedService) -> int:
    """Have the service as wanted; the exit code. Raises what is wrong before anything is changed."""
    unit = _unit(wanted)
    systemd = Systemd(wanted.is_of_user)
    file = systemd.folder / unit.name
    if wanted.only_shows:
        _check_settings(unit)
        print(f"# {file}\n{unit.text()}")
        print("# then:")
        for words in _steps(wanted.starts, unit.name, is_new=True):
            print(f"# {shlex.join([*systemd.words, *words])}")
        return 0
    unit = replace(unit, version=systemd.version())
    systemd.must_be_allowed(wanted.line)
    before = _ours(file)
    _must_be_readable(unit)
    _check_settings(unit)
    text = unit.text()
    if before == text and systemd.is_enabled(unit.name) and (systemd.is_active(unit.name) or not wanted.starts):
        print(f"nothing to do: {file} is as it should be" + (", and it runs" if wanted.starts else ""))
        return 0
    if before != text:
        _write(file, text)
        print(f"{'changed' if before else 'wrote'} {file}")
    was_active = bool(before) and systemd.is_active(unit.name)
    for words in _steps(wanted.starts, unit.name, is_new=not was_active):
        print(f"{shlex.join([*systemd.words, *words])}", flush=True)
        done = systemd.run(*words, seconds=START_SECONDS_MAX)
        if done.returncode != 0:
            print(done.stderr.strip(), file=sys.stderr)
            print(f"What it said: journalctl{_of_user(wanted)} -u {unit.name} -n 30", file=sys.stderr)
            return 1
    _tell(unit, wanted)
    return 0


def uninstall_service(program: str, *, is_of_user: bool, only_shows: bool) -> int:
    """Stop and remove it; the exit code."""
    _must_be_program(program)
    systemd = Systemd(is_of_user)
    unit = Unit(program=program, python=Path(sys.executable), is_of_user=is_of_user)
    file = systemd.folder / unit.name
    if not _ours(file):
        print(f"nothing to do: there is no {file}")
        return 0
    steps = (("disable", "--now", unit.name), ("daemon-reload",))
    if only_shows:
        print(f"# {shlex.join([*systemd.words, *steps[0]])}\n# rm {file}\n# {shlex.join([*systemd.words, *steps[1]])}")
        return 0
    systemd.version()
    systemd.must_be_allowed(f"gpuctl uninstall {program}")
    stopped = systemd.run(*steps[0], seconds=START_SECONDS_MAX)
    if stopped.returncode != 0:
        print(stopped.stderr.strip(), file=sys.stderr)
        return 1
    file.unlink()
    systemd.run(*steps[1])
    print(f"stopped {unit.name} and removed {file}")
    if unit.data:
        print(f"its data stays in {unit.data}")
    if program == "agent":
        data = f" --data {unit.data}" if unit.data else ""
        print(f"jobs that run go on; to end them, too: gpuctl agent stop-keeper{data} --kill")
    return 0


def _unit(wanted: WantedService) -> Unit:
    _must_be_program(wanted.program)
    for option in wanted.options:
        if (name := option.partition("=")[0]) in OWN:
            why = "a service has a folder of its own, and its settings file is named before --"
            raise invalid(name, why, next_step="Leave --data out, and write gpuctl install PROGRAM --config FILE -- …")
    if wanted.account and wanted.is_of_user:
        raise invalid("--account", "a service of your account runs as you", next_step="Leave out --account or --user.")
    options = _with_whole_paths(wanted.options)
    config = wanted.config.absolute() if wanted.config else None
    standard = Path("/etc/gpufleet", f"{wanted.program}.toml")
    if config is None and not wanted.is_of_user and standard.exists():
        config = standard
    # Not resolved: an environment's interpreter is a link, and what it imports follows from where that lies.
    python = Path(sys.executable).absolute()
    return Unit(
        program=wanted.program,
        python=python,
        interpreter=(
            *(python, python.resolve(), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()),
            Path(__file__).resolve().parent,
        ),
        options=options,
        config=config,
        account=wanted.account,
        is_of_user=wanted.is_of_user,
    )


def _must_be_readable(unit: Unit) -> None:
    """Raises where the service of a program could not read what it is started with."""
    if unit.is_of_user or unit.program == "agent":
        return
    for place in (*unit.interpreter, *([unit.config] if unit.config else [])):
        for folder in PRIVATE:
            if place.is_relative_to(folder):
                raise GpufleetError(
                    Reason.PERMISSION_DENIED,
                    f"the {unit.program} could not read {place}: a service has a {folder} of its own",
                    next_step=f"{NEXT_STEP}, and keep its settings file in /etc/gpufleet.",
                )
    if unit.account:
        return
    for place in unit.interpreter:
        for folder in (place, *place.parents):
            if not folder.stat().st_mode & 0o001:
                raise GpufleetError(
                    Reason.PERMISSION_DENIED,
                    f"the account of the {unit.program} could not read {place}: {folder} is closed to others",
                    next_step=f"{NEXT_STEP}, or name an account that may: --account NAME",
                )


def _must_be_program(program: str) -> None:
    if program not in MODULES:
        raise invalid("PROGRAM", f'"{program}" is none', next_step=f"Write one of: {', '.join(MODULES)}.")


def _with_whole_paths(options: tuple[str, ...]) -> tuple[str, ...]:
    """Each option and its value as two words, files by their absolute paths: a service starts in another folder."""
    words = list[str]()
    for option in options:
        name, equals, value = option.partition("=")
        words += [name, value] if equals and name in FILE_OPTIONS else [option]
    return tuple(
        str(Path(word).absolute()) if at and words[at - 1] in FILE_OPTIONS else word for at, word in enumerate(words)
    )


def _ours(file: Path) -> str:
    """The unit as it is; empty where there is none. Raises UNIT_TAKEN for one that somebody else wrote."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return ""
    if not text.startswith(MARK):
        raise GpufleetError(
            Reason.UNIT_TAKEN, f"{file} was not written by gpuctl install", next_step=f"Move {file} away."
        )
    return text


def _check_settings(unit: Unit) -> None:
    """Have the program read its settings, files and all, and leave."""
    command = [str(unit.python), "-P", "-m", f"gpufleet.{MODULES[unit.program]}"]
    command += ["--config", str(unit.config)] if unit.config else []
    command += ["--check-settings", *unit.options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise GpufleetError(Reason.INVALID_ARGUMENT, "the settings could not be checked in time") from None
    if done.returncode != 0:
        # Before a mistake in its options argparse says how it is used.
        said = done.stderr.strip().rpartition(f"gpuctl {unit.program}: error: ")[2]
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"the {unit.program} does not take these settings: {said}",
            next_step=f"What it takes: gpuctl {unit.program} --help",
        )


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.new")
    unfinished.write_text(text)
    unfinished.chmod(0o644)
    unfinished.replace(file)


def _steps(starts: bool, name: str, *, is_new: bool) -> list[tuple[str, ...]]:
    steps: list[tuple[str, ...]] = [("daemon-reload",), ("enable", name)]
    if starts:
        steps.append(("start", name) if is_new else ("restart", name))
    return steps


def _of_user(wanted: WantedService) -> str:
    return " --user" if wanted.is_of_user else ""


def _tell(unit: Unit, wanted: WantedService) -> None:
    state = "it runs, and starts with the machine" if wanted.starts else "it starts with the machine"
    print(f"{unit.name}: {state}; its data is in {unit.data or 'its usual folder'}")
    if unit.program == "scheduler" and unit.data and wanted.starts:
        print(f"tokens of its first start: {unit.data}/admin.token, agent.token, gateway.token; as an admin, type:")
        print(f"  gpuctl config context add local --scheduler HOST:PORT --token-file {unit.data}/admin.token --use")
