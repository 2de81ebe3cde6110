"""What an option of Slurm's is here: the rows of the table in docs/coming-from-slurm.md, with the value that was typed.

A test holds table and page together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gpufleet.fleet.submitting.option_kinds import begin_of_slurm
from gpufleet.text.units import exact_duration

from .finding import Script, marked_lines

MARK = "#SBATCH"
PAGE = "docs/coming-from-slurm.md"


@dataclass(frozen=True, slots=True)
class Translated:
    """One option of Slurm's as it was typed, and what to type here."""

    typed: str
    ours: tuple[str, ...] = ()
    """Our words; empty where nothing has to be typed, or nothing is like it."""
    remark: str = ""

    def in_words(self, known: Collection[str]) -> str:
        """`--gpus 2 (on one node …)`; of an option that this command does not know only the remark."""
        if self.ours and self.ours[0] not in known:
            return "there is nothing like it yet"
        if not self.ours:
            return self.remark or "there is nothing to type"
        return " ".join(map(_quoted, self.ours)) + (f" ({self.remark})" if self.remark else "")


@dataclass(frozen=True, slots=True)
class Row:
    """An option of Slurm's: what it becomes."""

    translate: Callable[[str], Sequence[str]]
    """Our words for a value; none where its option does nothing here."""
    remark: str = ""
    takes_value: bool = True


def option_of(word: str) -> str:
    """The long name of an option of Slurm's as it was typed (`--gres=gpu:2`, `-p`); empty for what is none."""
    name = word.partition("=")[0]
    if not name.startswith("--"):
        name = LETTERS.get(name[:2], "")
    return name if name in ROWS else ""


def translated(words: Sequence[str]) -> list[Translated]:
    """Each option of Slurm's among these words; others are passed over."""
    found: list[Translated] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = option_of(word)
        if not name:
            continue
        row = ROWS[name]
        typed, value = word, ""
        if word.startswith("--"):
            value = word.partition("=")[2]
        elif len(word) > 2:
            value = word[2:].removeprefix("=")
        if row.takes_value and not value and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
            typed = f"{word} {value}"
        ours = tuple(row.translate(value))
        found.append(Translated(typed, ours, _remark(row, ours)))
    return _of_each_node(found)


def _remark(row: Row, ours: Sequence[str]) -> str:
    return next((REMARKS[word] for word in reversed(ours) if word in REMARKS), row.remark)


def _of_each_node(found: list[Translated]) -> list[Translated]:
    """Of several nodes `--gres` counts the GPUs of each."""
    if not any(each.ours[:1] == ("--nodes",) and each.ours[1:] != ("1",) for each in found):
        return found
    return [
        replace(each, ours=("--gpus-per-node", *each.ours[1:]))
        if each.typed.startswith("--gres") and each.ours[:1] == ("--gpus",)
        else each
        for each in found
    ]


def warning_of(script: Script, known: Collection[str], given: Collection[str]) -> str:
    """What the script's `#SBATCH` lines would be here, in one line; empty where all of it is asked for already.

    `known` are the options of this command, `given` those that the `#gpuctl` lines and the command line name.
    """
    words: list[str] = []
    for _, text in marked_lines(script, MARK):
        try:
            words += shlex.split(text, comments=True)
        except ValueError:
            continue
    here, without = [], []
    for each in translated(words):
        if each.ours and each.ours[0] in known:
            here += [] if each.ours[0] in given else [shlex.join(each.ours)]
        elif not each.ours and not each.remark.startswith(("submit", "stderr")):
            without.append(each.typed)
    if not here and (not without or given):
        return ""
    told = f"{script.name}: its {MARK} lines are not read"
    told += f"; here they would be: #gpuctl {' '.join(dict.fromkeys(here))}" if here else ""
    return told + (f"; nothing stands for {', '.join(without)} (see {PAGE})" if without else "")


def _quoted(word: str) -> str:
    # `CMD|URL` and `NAME=east` are read by people; what holds spaces must be quoted to be typed.
    return shlex.quote(word) if re.search(r"\s", word) else word


def _as_it_is(option: str) -> Callable[[str], Sequence[str]]:
    return lambda value: (option, value) if value else (option,)


def _fixed(*words: str) -> Callable[[str], Sequence[str]]:
    return lambda _: words


def _nothing(_: str) -> Sequence[str]:
    return ()


def _gres(value: str) -> Sequence[str]:
    kind, *rest = value.partition(",")[0].partition("(")[0].removeprefix("gres/").replace("=", ":").split(":")
    if kind == "shard":
        return "--gpu-share", "0.5"
    model = rest[0] if rest and not rest[0].isdigit() else ""
    count = rest[-1] if rest and rest[-1].isdigit() else "1"
    return "--gpus", count, *(("--gpu-model", model) if model else ())


def _gpus(value: str) -> Sequence[str]:
    model, _, count = value.rpartition(":")
    return "--gpus", count or "1", *(("--gpu-model", model) if model else ())


def _memory(value: str) -> Sequence[str]:
    read = re.fullmatch(r"([0-9.]+)([KMGT]?)B?", value.upper())
    if read is None:
        return "--memory", "SIZE"
    number, unit = read.groups()
    if number.strip("0.") == "":
        return ()
    return "--memory", number + {"K": "kB", "": "MB"}.get(unit, f"{unit}B")


def _time(value: str) -> Sequence[str]:
    """Slurm reads minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds]."""
    if value.upper() in ("0", "UNLIMITED", "INFINITE"):
        return ()
    read = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", value)
    if read is None:
        return "--time-limit", "TIME"
    days, *parts = (None if part is None else int(part) for part in read.groups())
    first, second, third = parts
    if days is not None:
        span = timedelta(days=days, hours=first or 0, minutes=second or 0, seconds=third or 0)
    elif third is not None:
        span = timedelta(hours=first or 0, minutes=second or 0, seconds=third)
    else:
        span = timedelta(minutes=first or 0, seconds=second or 0)
    return "--time-limit", exact_duration(span)


_CONDITIONS = {"afterok": "", "afterany": ":any", "afternotok": ":fail"}


def _dependency(value: str) -> Sequence[str]:
    after = []
    for part in re.split(r"[,?]", value):
        kind, *ids = part.split(":")
        if kind in _CONDITIONS:
            after += [job_id + _CONDITIONS[kind] for job_id in ids]
    return ("--after", ",".join(after)) if after else ()


def _begin(value: str) -> Sequence[str]:
    return "--begin", begin_of_slurm(value) or value or "TIME"


def _export(value: str) -> Sequence[str]:
    words: list[str] = []
    for part in filter(None, value.split(",")):
        if part.upper() == "ALL":
            words.append("--env-all")
        elif part.upper() not in ("NONE", "NIL"):
            words += ["--env", part]
    return words


def _signal(value: str) -> Sequence[str]:
    letters, _, asked = value.rpartition(":")
    name, at, seconds = asked.partition("@")
    name = ("B:" if "B" in letters.upper() else "") + (name.upper().removeprefix("SIG") or "USR1")
    return "--signal", f"{name}@{exact_duration(timedelta(seconds=int(seconds)))}" if at and seconds.isdigit() else name


def _dash(option: str, name: str) -> Callable[[str], Sequence[str]]:
    return lambda value: (option, f"{name}={value or 'VALUE'}")


def _array(value: str) -> Sequence[str]:
    return "--array", re.sub(r"(\d+)-(\d+):(\d+)", r"\1-\2:\3", value) or "INDICES"


NO_PARTITIONS = "there are no partitions: one queue; --gpu-model and --node-label choose nodes, --band who is first"
NO_ACCOUNTS = "there is nothing to name: a token is a user, and usage is counted by user"
EXCLUSIVE = "whole GPUs are a job's own already; a node of your own: ask for all its GPUs and CPUs"
NO_RESERVATIONS = "there are no reservations: --begin says when, --nodelist where; an admin drains nodes beforehand"
NO_TASKS = "one copy runs on each of --nodes N; in it, start as many processes as it needs"

REMARKS: Mapping[str, str] = {
    "--gpu-model": "a part of the name",
    "--gpu-share": "a part of a GPU, counted by its memory",
    "--env": "",
}
"""Remarks on options of ours that only some values of Slurm's become."""

ROWS: Mapping[str, Row] = {
    "--gres": Row(_gres, "on one node where one could ever hold it"),
    "--gpus": Row(_gpus, "on one node where one could ever hold it"),
    "--gpus-per-node": Row(_as_it_is("--gpus-per-node")),
    "--gpus-per-task": Row(_as_it_is("--gpus-per-node")),
    "--nodes": Row(
        lambda value: ("--nodes", value.partition("-")[0] or "N"), "one copy on each node, without srun inside"
    ),
    "--ntasks": Row(_nothing, NO_TASKS),
    "--ntasks-per-node": Row(_nothing, NO_TASKS),
    "--cpus-per-task": Row(_as_it_is("--cpus")),
    "--mem": Row(_memory, "units are written out: 32GB or 32GiB"),
    "--mem-per-cpu": Row(_memory, "of each node, not of each CPU"),
    "--mem-per-gpu": Row(_memory, "of each node, not of each GPU; of the GPU itself: --min-memory"),
    "--time": Row(_time, "jobs with a limit pass others that wait"),
    "--job-name": Row(_as_it_is("--name")),
    "--dependency": Row(_dependency, "also 41:any and 41:fail"),
    "--array": Row(_array, "items are 41.3; see arrays.md"),
    "--begin": Row(_begin, "or 18:30"),
    "--hold": Row(_fixed("--hold"), takes_value=False),
    "--nodelist": Row(_as_it_is("--nodelist")),
    "--exclude": Row(_as_it_is("--exclude")),
    "--constraint": Row(_dash("--node-label", "NAME"), "labels are given to gpuctl agent"),
    "--chdir": Row(_as_it_is("--cwd")),
    "--export": Row(_export, "without it only PATH, LANG and TERM go along"),
    "--requeue": Row(_fixed("--requeue"), takes_value=False),
    "--no-requeue": Row(_fixed("--no-requeue"), takes_value=False),
    "--qos": Row(_fixed("--band", "low", "--preemptible"), "gives way to higher bands"),
    "--nice": Row(_fixed("--band", "low"), "bands in place of numbers"),
    "--priority": Row(_fixed("--band", "high"), "bands in place of numbers"),
    "--comment": Row(_dash("--label", "comment"), "queue --label finds it"),
    "--mail-type": Row(_fixed("--notify", "mail -s done me"), "any command or URL"),
    "--mail-user": Row(_fixed("--notify", "mail -s done me"), "any command or URL"),
    "--test-only": Row(
        _fixed("--dry-run"),
        "shows the request whole, and where it would start now, or what it would wait for",
        takes_value=False,
    ),
    "--output": Row(_as_it_is("--output-file"), "a copy on the node; gpuctl logs has all of it without"),
    "--error": Row(_nothing, "stderr is kept with the output, and told apart: gpuctl logs --stderr"),
    "--signal": Row(_signal, "so long before the time limit"),
    "--partition": Row(_nothing, NO_PARTITIONS),
    "--account": Row(_nothing, NO_ACCOUNTS),
    "--exclusive": Row(_nothing, EXCLUSIVE, takes_value=False),
    "--reservation": Row(_nothing, NO_RESERVATIONS),
    "--wrap": Row(_nothing, "one quoted string behind -- is run by the shell"),
    "--wait": Row(_nothing, "gpuctl run stays to the end; of one that is submitted: gpuctl wait ID", takes_value=False),
    "--parsable": Row(_nothing, "submit prints the id alone", takes_value=False),
}
"""Slurm's option → what it is here."""

LETTERS: Mapping[str, str] = {
    "-G": "--gpus",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    "-t": "--time",
    "-J": "--job-name",
    "-d": "--dependency",
    "-a": "--array",
    "-b": "--begin",
    "-H": "--hold",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-C": "--constraint",
    "-D": "--chdir",
    "-q": "--qos",
    "-o": "--output",
    "-e": "--error",
    "-p": "--partition",
    "-A": "--account",
    "-W": "--wait",
}
"""Slurm's single letters."""
