"""What must hold for people who know only what gpuctl prints and what their jobs wrote. It does nothing but judge.

Each rule has broken histories that it must find (tests/drills/test_outsider.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.drills.outsider.evidence import FINAL, SUCCEEDED, About, Cut, Finding, Look, Ran, Wish, by_word
from tests.drills.outsider.job import lines

OK, FAILED, NOT_FOUND, REFUSED, UNAVAILABLE, OUT_OF_TIME = 0, 1, 3, 4, 5, 124
"""Exit codes of gpuctl as its documents have them; the last one is ours: it was not waited for any longer."""

OWN_FAILURE = 125
"""Of gpuctl wait, whose codes are the job's otherwise."""

HIDDEN = "<hidden>"
SAID_CHARS_MAX = 300


@dataclass(slots=True)
class Known:
    """What is known of a wish."""

    wish: Wish
    asked_ns: int
    job: int = 0
    answered_ns: int = 0
    outcome: str = ""
    outcome_ns: int = 0
    """How it ended, and when somebody was first told so."""


class Judge:
    """Hears of everything in the order in which it happens, and answers with what is wrong about it."""

    def __init__(self, people: Mapping[str, str], privacy: str) -> None:
        """`people` are names and roles (user or admin); `privacy` is team or owner, as the scheduler was told."""
        self._roles = dict(people)
        self._is_private = privacy == "owner"
        self.known: dict[str, Known] = {}
        self._by_job: dict[int, Known] = {}
        self._cuts: list[Cut] = []
        self.looks = 0

    # --- what happens

    def asked(self, wish: Wish, at_ns: int) -> None:
        """A submit is about to be made."""
        self.known.setdefault(wish.request, Known(wish, at_ns))

    def acknowledged(self, request: str, job: int, at_ns: int) -> Iterator[Finding]:
        """A submit was answered with a job's id; the same one may be answered again."""
        known = self.known[request]
        if known.job and known.job != job and not self._is_cut(known.answered_ns):
            yield Finding("one answer", f"{request} was acknowledged as job {known.job} and as job {job}")
        if (other := self._by_job.get(job)) is not None and other is not known:
            text = f"job {job} was given to {other.wish.request} and to {request}"
            yield Finding("ids are given once", text)
        known.job, known.answered_ns = job, at_ns
        self._by_job[job] = known

    def cut(self, cut: Cut) -> None:
        """It was said that the store was put back: what somebody saw in between need not hold any more."""
        self._cuts.append(cut)
        for known in self.known.values():
            if known.outcome and cut.holds(known.outcome_ns):
                known.outcome, known.outcome_ns = "", 0

    def looked(self, look: Look) -> Iterator[Finding]:
        """Somebody gave a command."""
        self.looks += 1
        yield from self._secrets(look)
        if b"Traceback (most recent call last)" in look.out + look.err:
            yield Finding("nothing strange", f"{look.command} printed a traceback: {_text(look)}")
        if look.code in (UNAVAILABLE, OUT_OF_TIME) or look.code < 0:
            return
        match look.about:
            case About.QUEUE:
                yield from self._queue(look)
            case About.WAIT:
                yield from self._waited(look)
            case _:
                yield from self._of_one(look)

    def ended(self, runs: Iterable[Ran]) -> Iterator[Finding]:
        """All is over, and everybody has looked at all that was theirs."""
        found = by_word(runs)
        words = {known.wish.word: known for known in self.known.values()}
        for word in found.keys() - words.keys():
            yield Finding("nothing unasked ran", f"a job with the word {word} ran, and nobody asked for it")
        for word, known in words.items():
            yield from self._one_outcome(known, found.get(word, []))
            yield from self._ran_once(known, found.get(word, []))

    # --- rules

    def _secrets(self, look: Look) -> Iterator[Finding]:
        """What one may not see is shown in nothing that gpuctl prints."""
        if self._roles[look.person] == "admin":
            return
        said = look.out + look.err
        for known in self.known.values():
            if known.wish.person == look.person:
                continue
            if known.wish.value.encode() in said:
                text = f"{look.command} shows a variable of {known.wish.person}'s {known.wish.request}"
                yield Finding("variables are hidden", text)
            if self._is_private and known.wish.word.encode() in said:
                text = f"{look.command} shows what {known.wish.person}'s {known.wish.request} does"
                yield Finding("output is private", text)

    def _of_one(self, look: Look) -> Iterator[Finding]:
        """A job, its output or its story."""
        known = self._by_job.get(look.job)
        is_own = known is not None and known.wish.person == look.person
        may_read = is_own or self._roles[look.person] == "admin" or not self._is_private
        if look.code == REFUSED and look.about is not About.JOB and not may_read:
            return
        if look.code == NOT_FOUND and (known is None or self._is_cut(known.answered_ns)):
            return
        if look.code != OK:
            yield Finding("acknowledged is there", f"{look.command} ended with {look.code}: {_text(look)}")
            return
        if look.about is About.LOGS:
            if not may_read:
                yield Finding("output is private", f"{look.command} was answered: {_text(look)}")
            yield from self._output(look, known)
        elif look.about is About.JOB and (shown := _parsed(look)) is not None:
            yield from self._job(look, shown)
        elif look.about is About.JOB:
            yield Finding("nothing strange", f"{look.command} printed no JSON: {_text(look)}")

    def _queue(self, look: Look) -> Iterator[Finding]:
        shown = _parsed(look) if look.code == OK else None
        if shown is None:
            yield Finding("nothing strange", f"{look.command} ended with {look.code}: {_text(look)}")
            return
        for job in shown["jobs"]:
            yield from self._job(look, job)

    def _job(self, look: Look, shown: Mapping[str, Any]) -> Iterator[Finding]:
        """A job as it is shown is the one that was asked for, and has ended once."""
        job, user = int(shown["id"]), shown["user"]
        env = shown.get("spec", {}).get("env", {})
        is_masked = user != look.person and self._roles[look.person] != "admin"
        if is_masked and (open_ := [name for name, value in env.items() if value != HIDDEN]):
            yield Finding("variables are hidden", f"{look.command} shows {', '.join(open_)} of {user}'s job {job}")
        known = self._by_job.get(job)
        if known is None:
            return
        wish = known.wish
        if (user, shown["spec"]["name"]) != (wish.person, wish.request):
            text = f"job {job} was acknowledged as {wish.request} and is {user}'s {shown['spec']['name']}"
            yield Finding("ids are given once", f"{look.command}: {text}")
            return
        state, code = shown["state"], shown.get("exit", {}).get("code")
        outcome = f"{state} {code}" if state in FINAL else ""
        is_late = any(cut.until_ns > look.begun_ns for cut in self._cuts)
        if is_late or look.begun_ns < known.outcome_ns:
            return  # what it tells may be of before
        if known.outcome and outcome != known.outcome:
            text = f"{look.command}: {wish.request} had ended {known.outcome} and is {outcome or state}"
            yield Finding("one outcome", text)
        if outcome and not known.outcome:
            known.outcome, known.outcome_ns = outcome, look.ended_ns
        if state == SUCCEEDED and wish.code:
            yield Finding("one outcome", f"{look.command}: {wish.request} succeeded, and ends with {wish.code}")

    def _output(self, look: Look, known: Known | None) -> Iterator[Finding]:
        """Output has the job's word alone, and is whole once the job has succeeded."""
        if known is None:
            for other in self.known.values():
                if other.wish.word.encode() in look.out:
                    text = f"{look.command} shows the word of {other.wish.request}, job {other.job}"
                    yield Finding("output is one's own", text)
            return
        wish = known.wish
        if not look.out:
            attempt = 1
        else:
            first = look.out.partition(b"\n")[0].split(b" ")
            attempt = int(first[1]) if len(first) == 3 and first[1].isdigit() else 1
        expected = lines(wish.word, attempt, 0, wish.lines)
        if not expected.startswith(look.out):
            at = next((n for n, (a, b) in enumerate(zip(look.out, expected, strict=False)) if a != b), len(expected))
            text = f"{look.command} is not {wish.request}'s from byte {at} on: {look.out[at : at + 80]!r}"
            yield Finding("output is one's own", text)
        elif known.outcome.startswith(SUCCEEDED) and look.begun_ns > known.outcome_ns and look.out != expected:
            text = f"{look.command}: {len(look.out)} of {len(expected)} bytes, and {wish.request} has succeeded"
            yield Finding("finished output is whole", text)

    def _waited(self, look: Look) -> Iterator[Finding]:
        """The code of `gpuctl wait` is the job's."""
        known = self._by_job.get(look.job)
        if known is None or look.code == OWN_FAILURE or not known.outcome:
            return
        if known.outcome.startswith(SUCCEEDED) != (look.code == OK):
            yield Finding("one outcome", f"{look.command} ended with {look.code}, and the job {known.outcome}")

    def _one_outcome(self, known: Known, runs: list[Ran]) -> Iterator[Finding]:
        """What was acknowledged has ended, and what succeeded has run."""
        wish = known.wish
        if not known.job:
            yield Finding("one outcome", f"{wish.request} of {wish.person} was never answered")
        elif not known.outcome and not self._is_cut(known.answered_ns):
            yield Finding("one outcome", f"{wish.request}, job {known.job}, has no outcome")
        elif known.outcome.startswith(SUCCEEDED) and not any(run.code == 0 for run in runs):
            yield Finding("one outcome", f"{wish.request}, job {known.job}, has succeeded, and never ran to its end")

    def _ran_once(self, known: Known, runs: list[Ran]) -> Iterator[Finding]:
        """No attempt ran twice, no two lived at once, and nothing ran after its end was told."""
        wish = known.wish
        is_cut = any(known.asked_ns <= cut.until_ns for cut in self._cuts)
        seen: dict[tuple[int, int], Ran] = {}
        living: Ran | None = None
        for run in runs:
            if run.job != known.job and not is_cut:
                text = f"{wish.request} is job {known.job}, and ran as job {run.job}"
                yield Finding("nothing ran twice", text)
            before = seen.get((run.job, run.attempt))
            if before is not None and not self._is_between(before, run):
                text = f"attempt {run.attempt} of job {run.job} ({wish.request}) was started twice"
                yield Finding("nothing ran twice", text)
            seen[run.job, run.attempt] = run
            if living is not None and living.seen_ns > run.began_ns and living.job == run.job:
                text = f"attempts {living.attempt} and {run.attempt} of job {run.job} lived at once"
                yield Finding("nothing ran twice", text)
            if known.outcome and run.began_ns > known.outcome_ns:
                text = f"attempt {run.attempt} of job {run.job} began after it was told to have ended"
                yield Finding("nothing ran twice", text)
            if living is None or run.seen_ns > living.seen_ns:
                living = run

    def _is_between(self, one: Ran, other: Ran) -> bool:
        """Whether the store was put back between their beginnings: it may know nothing of the first."""
        return any(one.began_ns <= cut.until_ns < other.began_ns for cut in self._cuts)

    def _is_cut(self, ns: int) -> bool:
        return any(cut.holds(ns) for cut in self._cuts)


def _parsed(look: Look) -> dict[str, Any] | None:
    try:
        found = json.loads(look.out)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _text(look: Look) -> str:
    return (look.err or look.out).decode(errors="replace")[-SAID_CHARS_MAX:]
