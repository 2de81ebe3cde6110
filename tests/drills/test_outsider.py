"""The outsider lets a good history pass, finds what breaks it, and knows nothing of gpufleet."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.drills.outsider.evidence import About, Cut, Finding, Look, Ran, Wish
from tests.drills.outsider.job import lines
from tests.drills.outsider.judge import HIDDEN, NOT_FOUND, REFUSED, UNAVAILABLE, Judge

ROOT = Path(__file__).parents[2]
OUTSIDER = Path(__file__).with_name("outsider")
FAKE = Path(__file__).with_name("lying_gpuctl.py")
PEOPLE = {"fay": "user", "gil": "user", "ivy": "admin"}

FAY = Wish(request="fay-1", person="fay", word="apple", value="pear", lines=3)
GIL = Wish(request="gil-1", person="gil", word="olive", value="grape", lines=3)


def shown(wish: Wish, job: int, person: str, state: str = "JOB_STATE_SUCCEEDED", code: int | None = 0) -> bytes:
    value = wish.value if person in (wish.person, "ivy") else HIDDEN
    spec = {"name": wish.request, "env": {"OUTSIDERS_VALUE": value}}
    facts = {"id": str(job), "user": wish.person, "state": state, "spec": spec}
    return json.dumps(facts | ({"exit": {"code": code}} if code is not None else {})).encode()


def look(person: str, about: About, job: int, out: bytes = b"", code: int = 0, at: int = 50) -> Look:
    return Look(person=person, about=about, job=job, out=out, code=code, begun_ns=at, ended_ns=at + 1)


def ran(wish: Wish, job: int, attempt: int = 1, began: int = 20, seen: int = 30, code: int | None = 0) -> Ran:
    return Ran(word=wish.word, job=job, attempt=attempt, pid=1, began_ns=began, seen_ns=seen, code=code)


ANSWERS = ((FAY, 1, 11), (GIL, 2, 12))
LOOKS = (
    look("fay", About.JOB, 1, shown(FAY, 1, "fay", "JOB_STATE_RUNNING", None), at=22),
    look("fay", About.LOGS, 1, lines("apple", 1, 0, 3)[:9], at=22),
    look("fay", About.JOB, 1, code=UNAVAILABLE, at=23),
    look("fay", About.JOB, 1, shown(FAY, 1, "fay"), at=40),
    look("fay", About.LOGS, 1, lines("apple", 1, 0, 3)),
    look("fay", About.WAIT, 1),
    look("gil", About.JOB, 2, shown(GIL, 2, "gil"), at=40),
    look("gil", About.LOGS, 1, code=REFUSED),
    look("gil", About.JOB, 1, shown(FAY, 1, "gil")),
    look("ivy", About.LOGS, 1, lines("apple", 1, 0, 3)),
    look("ivy", About.QUEUE, 0, b'{"jobs": [' + shown(FAY, 1, "ivy") + b"]}"),
    look("gil", About.QUEUE, 0, b'{"jobs": [' + shown(FAY, 1, "gil") + b"]}"),
)
RUNS = (ran(FAY, 1), ran(GIL, 2))


def judged(
    looks: Sequence[Look] = LOOKS,
    runs: Sequence[Ran] = RUNS,
    answers: Sequence[tuple[Wish, int, int]] = ANSWERS,
    cut: Cut | None = None,
    privacy: str = "owner",
) -> list[Finding]:
    judge = Judge(PEOPLE, privacy)
    found: list[Finding] = []
    for wish in (FAY, GIL):
        judge.asked(wish, 10)
    for wish, job, at in answers:
        found += judge.acknowledged(wish.request, job, at)
    for each in sorted(looks, key=lambda each: each.begun_ns):
        if cut is not None and each.begun_ns >= cut.until_ns:
            judge.cut(cut)
            cut = None
        found += judge.looked(each)
    return [*found, *judge.ended(runs)]


def test_a_good_history_is_good() -> None:
    assert judged() == []
    assert judged([*LOOKS, look("gil", About.JOB, 3, code=NOT_FOUND)]) == []


def test_where_output_is_shared_others_read_it_and_variables_stay_hidden() -> None:
    shared = [each for each in LOOKS if each.code != REFUSED]
    shared.append(look("gil", About.LOGS, 1, lines("apple", 1, 0, 3)))
    assert judged(shared, privacy="team") == []
    shared.append(look("gil", About.STORY, 1, b"it has OUTSIDERS_VALUE=pear"))
    assert {each.rule for each in judged(shared, privacy="team")} == {"variables are hidden"}


BROKEN = {
    "a submit that has no outcome": ("one outcome", {"looks": [each for each in LOOKS if each.job != 2]}),
    "a submit that was never answered": ("one outcome", {"answers": ANSWERS[:1]}),
    "a submit answered as two jobs": ("one answer", {"answers": (*ANSWERS, (FAY, 3, 13))}),
    "one id for two people": ("ids are given once", {"answers": ((FAY, 1, 11), (GIL, 1, 12))}),
    "a job that is another's": (
        "ids are given once",
        {"looks": [*LOOKS, look("fay", About.JOB, 1, shown(GIL, 1, "gil"))]},
    ),
    "a job that is gone": ("acknowledged is there", {"looks": [*LOOKS, look("fay", About.JOB, 1, code=NOT_FOUND)]}),
    "an end that changes": (
        "one outcome",
        {"looks": [*LOOKS, look("fay", About.JOB, 1, shown(FAY, 1, "fay", "JOB_STATE_FAILED", 9), at=60)]},
    ),
    "an end that is taken back": (
        "one outcome",
        {"looks": [*LOOKS, look("fay", About.JOB, 1, shown(FAY, 1, "fay", "JOB_STATE_RUNNING", None), at=60)]},
    ),
    "a success that never ran": ("one outcome", {"runs": RUNS[1:]}),
    "a wait that lies": ("one outcome", {"looks": [*LOOKS, look("fay", About.WAIT, 1, code=7, at=60)]}),
    "another's output": (
        "output is one's own",
        {"looks": [*LOOKS, look("fay", About.LOGS, 1, lines("olive", 1, 0, 3), at=60)]},
    ),
    "an outsider's word in the output of somebody's job": (
        "output is one's own",
        {"looks": [*LOOKS, look("ivy", About.LOGS, 77, b"4.1.0 1 0\napple 1 0\n", at=60)]},
    ),
    "output that lacks its end": (
        "finished output is whole",
        {"looks": [*LOOKS, look("fay", About.LOGS, 1, lines("apple", 1, 0, 2), at=60)]},
    ),
    "output of a success that is gone": (
        "finished output is whole",
        {"looks": [*LOOKS, look("fay", About.LOGS, 1, b"", at=60)]},
    ),
    "output that others read": (
        "output is private",
        {"looks": [*LOOKS, look("gil", About.LOGS, 1, lines("apple", 1, 0, 3), at=60)]},
    ),
    "a variable that others read": (
        "variables are hidden",
        {"looks": [*LOOKS, look("gil", About.JOB, 1, shown(FAY, 1, "fay"), at=60)]},
    ),
    "an attempt started twice": ("nothing ran twice", {"runs": (*RUNS, ran(FAY, 1, began=31, seen=33))}),
    "two attempts at once": ("nothing ran twice", {"runs": (*RUNS, ran(FAY, 1, attempt=2, began=25, seen=33))}),
    "an attempt after the end": ("nothing ran twice", {"runs": (*RUNS, ran(FAY, 1, attempt=2, began=70, seen=80))}),
    "a run as another job": ("nothing ran twice", {"runs": (*RUNS, ran(FAY, 9, began=31, seen=33))}),
    "a run that nobody asked for": ("nothing unasked ran", {"runs": (*RUNS, replace(ran(FAY, 9), word="plum"))}),
    "a traceback": (
        "nothing strange",
        {"looks": [*LOOKS, look("fay", About.QUEUE, 0, b"Traceback (most recent call last)", 1)]},
    ),
    "no JSON": ("nothing strange", {"looks": [*LOOKS, look("fay", About.JOB, 1, b"{")]}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_it_finds(name: str) -> None:
    rule, changes = BROKEN[name]
    found = judged(**changes)  # type: ignore[arg-type]
    assert rule in {each.rule for each in found}, found


def test_what_was_put_back_may_cost_what_came_in_between_and_nothing_else() -> None:
    cut = Cut(5, 45)
    lost = [each for each in LOOKS if each.job != 1 or each.begun_ns < 45]
    gone = [*lost, look("fay", About.JOB, 1, code=NOT_FOUND, at=46)]
    gone += [replace(each, begun_ns=60, ended_ns=61) for each in LOOKS if each.job == 2]
    assert judged(gone, cut=cut) == []
    assert judged(gone) != []
    before = {each.rule for each in judged(gone, cut=Cut(13, 45))}
    assert "acknowledged is there" in before, "what was acknowledged before it must be there"
    twice = [*LOOKS, look("gil", About.JOB, 1, shown(GIL, 1, "gil"), at=60)]
    assert "ids are given once" in {each.rule for each in judged(twice, cut=cut)}, "an id is never another's"


def test_it_imports_nothing_of_gpufleet_and_nothing_that_is_not_pythons_own() -> None:
    for file in OUTSIDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                is_own = name.startswith("tests.drills.outsider.") or name.partition(".")[0] in sys.stdlib_module_names
                assert is_own, f"{file.name} imports {name}"
    # And what it imports imports nothing of it either.
    told = "import sys, tests.drills.outsider.__main__; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-S", "-c", told], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) - {"tests"} <= {*sys.stdlib_module_names, "__main__"}


def carried_out(folder: Path, lie: str) -> list[dict[str, object]]:
    """What the program writes beside a gpuctl that tells this lie."""
    (folder / "notes").mkdir()
    people = {name: {"role": role, "token_file": name} for name, role in PEOPLE.items()}
    plan = {
        "seed": 1,
        "gpuctl": [sys.executable, "-S", "-E", str(FAKE), str(folder), lie],
        "scheduler": "none",
        "privacy": "owner",
        "people": people,
        "seconds_per_submit": 60.0,
        "seconds_per_look": 60.0,
        "seconds_max": 0.2,
        "python": sys.executable,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    program = [sys.executable, "-S", "-m", "tests.drills.outsider", str(folder / "plan.json")]
    (folder / "news.jsonl").write_text('{"what": "over"}\n')
    done = subprocess.run(program, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    written = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert written[-1]["what"] == "verdict", done.stderr
    assert done.returncode == (1 if written[-1]["findings"] else 0), done.stderr
    return [line for line in written if line["what"] == "finding"]


@pytest.mark.parametrize(
    ("lie", "rule"),
    [("nothing", ""), ("mixes", "output is one's own"), ("shows", "variables are hidden"), ("repeats", "nothing ran")],
)
def test_the_program_finds_what_a_lying_gpuctl_does(tmp_path: Path, lie: str, rule: str) -> None:
    found = carried_out(tmp_path, lie)
    assert bool(found) == bool(rule), found
    assert not rule or any(str(each["rule"]).startswith(rule) for each in found), found
