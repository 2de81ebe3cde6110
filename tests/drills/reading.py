"""From the folder of a drill that is over to its history. Nothing of it runs any more."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from gpufleet.jobs.runs import ExitCode
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.opening import FOLDER, open_shelf
from scheduler.outputs.segment_store import SegmentStore
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.ports import Piece
from scheduler.series.accounts import UsageSpan
from scheduler.series.history_file import HistoryFile
from scheduler.state.attempts import EndedAttempt
from scheduler.state.ids import JobId
from scheduler.state.jobs import Finished, Job
from scheduler.state.records import (
    AttemptEnded,
    AttemptPlaced,
    AttemptVoided,
    ItemsFinished,
    JobFinished,
    RankEnded,
    Record,
)
from scheduler.state.shares import WHOLE_MILLI
from scheduler.state.units import NEVER, Instant, Span
from scheduler.store import opening, reading, schema
from scheduler.store.codec import Codec
from scheduler.store.verify import Examined, problems
from tests.drills.beside import PEOPLE as OUTSIDERS
from tests.drills.history import (
    Account,
    AttemptKey,
    Cut,
    Followed,
    History,
    Hold,
    Output,
    Run,
    StoredAttempt,
    StoredJob,
    StreamKey,
    Submit,
)
from tests.drills.job import blocks
from tests.drills.mal import MAL
from tests.drills.restores import CUTS

READ_BYTES = 1_000_000
TRACEBACK = "Traceback (most recent call last)"
TRACEBACK_CHARS = 3_000

DIARIES, STAMPS, FOLLOWED, LOOT, NOTES = "people", "stamps", "followed", "loot", "notes.json"
"""The folders and files of a drill, below its own."""


def read_history(folder: Path, store_url: str = "") -> History:
    """Everything that a drill left in its folder, and in its database where that is not in the folder."""
    submits, cancelled, released, followed, surprises = diaries(folder / DIARIES)
    notes = json.loads((folder / NOTES).read_text()) if (folder / NOTES).exists() else {}
    data = folder / "fleet" / "scheduler"
    jobs, holds, records, damage = _store(store_url or f"sqlite:///{data / 'scheduler.db'}")
    # What the outsider asked for is the outsider's to judge: it shares no list and no format with what is judged here.
    # What hostile jobs do beside what they take is nobody's to say.
    guests = [job for job in jobs.values() if job.user in OUTSIDERS or job.user == MAL]
    jobs = {number: job for number, job in jobs.items() if job not in guests}
    unended = [f"job {job.id} of {job.user} has no outcome" for job in guests if not job.outcome]
    return History(
        submits=submits,
        cancelled=cancelled,
        released_ns=released,
        jobs=jobs,
        holds=holds,
        runs=tuple(_runs(folder / STAMPS)),
        outputs=_outputs(open_shelf(store_url, 0, data / FOLDER), jobs),
        followed=followed,
        accounts=_accounts(data),
        records=records,
        surprises=(*notes.get("surprises", ()), *surprises, *damage, *_tracebacks(folder / "fleet")),
        leftovers=(*notes.get("leftovers", ()), *unended),
        cuts=tuple(Cut(**cut) for cut in _lines_of(folder / CUTS)),
        hostile=sum(job.user == MAL for job in guests),
        loot=tuple(_loot(folder / LOOT)),
    )


# --- people


def diaries(
    folder: Path,
) -> tuple[tuple[Submit, ...], frozenset[int], dict[int, int], tuple[Followed, ...], list[str]]:
    """What people wrote down: submits, what they cancelled and released, what they followed, and what was strange."""
    submits: dict[str, Submit] = {}
    followed: dict[str, Followed] = {}
    cancelled: set[int] = set()
    released: dict[int, int] = {}
    surprises: list[str] = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            note: dict[str, Any] = json.loads(line)
            match note["what"]:
                case "asks":
                    submits[note["request"]] = _asked(file.stem, note)
                case "answered":
                    asked = submits[note["request"]]
                    submits[note["request"]] = replace(
                        asked,
                        answers=(*asked.answers, note["first"]),
                        answered_ns=asked.answered_ns or note["ns"],
                    )
                case "refused":
                    submits[note["request"]] = replace(submits[note["request"]], refusal=note["reason"])
                case "did":
                    pass  # who means harm tells what of
                case "cancels":
                    cancelled.add(note["job"])
                case "releases":
                    released.setdefault(note["job"], note["ns"])
                case "follows":
                    followed[note["name"]] = Followed(name=note["name"], job=note["job"], is_whole=False)
                case "got the end":
                    followed[note["name"]] = replace(followed[note["name"]], is_whole=True)
                case "problem":
                    of = followed[note["name"]]
                    followed[note["name"]] = replace(of, problems=(*of.problems, note["text"]))
                case _:
                    surprises.append(f"{file.stem}: {note.get('text', note)}")
    whole = tuple(
        replace(each, streams=_followed_streams(folder / FOLLOWED / each.name, each.job)) for each in followed.values()
    )
    return tuple(submits.values()), frozenset(cancelled), released, whole, surprises


def _asked(user: str, note: dict[str, Any]) -> Submit:
    return Submit(
        request_id=note["request"],
        user=user,
        kind=note["kind"],
        asked_ns=note["ns"],
        count=note["count"],
        items=note["items"],
        active_max=note["active_max"],
        is_requeueable=note["is_requeueable"],
        retries=note["retries"],
        is_held=note["is_held"],
        has_time_limit=note["has_time_limit"],
        share_milli=note["share_milli"],
        after=tuple((job, wanted) for job, wanted in note["after"]),
    )


def _followed_streams(folder: Path, job: int) -> dict[StreamKey, Output]:
    found: dict[StreamKey, Output] = {}
    for file in sorted(folder.glob("*")):
        attempt, rank, stream = map(int, file.name.split("."))
        key = StreamKey(job, attempt, rank, stream)
        found[key] = compared(key, _pieces_of(file))
    return found


def _pieces_of(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while data := opened.read(READ_BYTES):
            yield data


def compared(key: StreamKey, pieces: Iterable[bytes]) -> Output:
    """How long a stream is, and where it first differs from what its job prints."""
    expected, ready, length = blocks(*key), b"", 0
    for piece in pieces:
        while len(ready) < len(piece):
            ready += next(expected)
        if not ready.startswith(piece):
            differs = next(at for at, (one, other) in enumerate(zip(piece, ready, strict=False)) if one != other)
            return Output(length=length + len(piece), wrong_at=length + differs)
        ready, length = ready[len(piece) :], length + len(piece)
    return Output(length=length)


# --- the store


def _store(url: str) -> tuple[dict[int, StoredJob], tuple[Hold, ...], dict[str, Account], list[str]]:
    codec = Codec()
    database = opening.database_at(url, is_read_only=True)
    with closing(database):
        damage = [f"the store: {each}" for each in problems(database, codec)]
        rows = reading.all_rows(database, select(schema.record).order_by(schema.record.c.seq))
        records = [(row.seq, reading.record(codec, row).record) for row in rows]
        ended = Counter(int(record.job) for _, record in records if isinstance(record, JobFinished))
        known = {int(job.id): job for job in Examined(database, codec).jobs()}
    jobs = {number: _job(job, ended[number]) for number, job in known.items()}
    return jobs, _holds(records), _had(known, [record for _, record in records]), damage


def _had(jobs: Mapping[int, Job], records: Iterable[Record]) -> dict[str, Account]:
    """What each user had, by the records of ends: what the account must come to."""
    found: dict[str, Account] = defaultdict(Account)
    for record in records:
        match record:
            case AttemptEnded(job=number, ended=last) | JobFinished(job=number, ended=EndedAttempt() as last):
                user = jobs[number].user
                devices = [device for rank in last.ranks for device in rank.placement.devices]
                milli = sum(device.share_milli or WHOLE_MILLI for device in devices)
                started_at = last.ranks[0].started_at
                # In a slot of a backlog it held nothing before it began.
                since = last.placed_at if last.slot is None else started_at or last.ended_at
                more = Account(milli * max(0, last.ended_at - since), 0, int(started_at is not None))
                found[user] = _sum(found[user], more)
            case ItemsFinished(array=number, spans=spans):
                user = jobs[number].user
                found[user] = _sum(found[user], Account(jobs=sum(end - begin for begin, end in spans)))
            case _:
                pass
        if isinstance(record, JobFinished) and jobs[record.job].items is None:
            user = jobs[record.job].user
            found[user] = _sum(found[user], Account(jobs=1))
    return dict(found)


def _sum(one: Account, other: Account) -> Account:
    return Account(one.device_time + other.device_time, one.jobs + other.jobs, one.starts + other.starts)


def _accounts(data: Path) -> dict[str, Account]:
    """What the file of histories has counted for each user."""
    with closing(HistoryFile(data, is_reader=True)) as file:
        groups = file.usage([], UsageSpan(Instant(0), NEVER, Span(NEVER)), "user", "")
    return {user: Account(each.totals.milli_us, each.totals.jobs, each.totals.starts) for user, each in groups.items()}


def _job(job: Job, ends: int) -> StoredJob:
    state = job.state if isinstance(job.state, Finished) else None
    return StoredJob(
        id=job.id,
        user=job.user,
        outcome=state.outcome.value if state else "",
        reason=state.reason if state else "",
        code=state.exit.code if state and isinstance(state.exit, ExitCode) else None,
        attempts=tuple(map(_attempt, job.past)),
        ends_recorded=ends,
    )


def _attempt(ended: EndedAttempt) -> StoredAttempt:
    exits = [rank.exit for rank in ended.ranks]
    first = exits[0].exit if exits and exits[0] else None
    return StoredAttempt(
        number=ended.number,
        reason=ended.reason,
        code=first.code if isinstance(first, ExitCode) else None,
        is_complete=ended.output_is_complete,
        ends={(end.rank, int(end.stream)): end.end_offset for each in exits if each for end in each.output_ends},
    )


def _holds(records: Iterable[tuple[int, Record]]) -> tuple[Hold, ...]:
    """From when to when each attempt held what."""
    open_: dict[AttemptKey, list[Hold]] = defaultdict(list)
    closed: list[Hold] = []

    def close(job: int, number: int, end: int, *, is_void: bool = False) -> None:
        closed.extend(replace(each, end=end, is_void=is_void) for each in open_.pop(AttemptKey(job, number), ()))

    for number, record in records:
        match record:
            case AttemptPlaced(job=job, attempt=attempt):
                key = AttemptKey(job, attempt.number)
                for rank, placed in enumerate(attempt.ranks):
                    devices = tuple(device.uuid for device in placed.placement.devices)
                    shares = [device.share_milli or WHOLE_MILLI for device in placed.placement.devices]
                    open_[key].append(
                        Hold(
                            attempt=key,
                            rank=rank,
                            node=placed.placement.node,
                            devices=devices,
                            begin=number,
                            end=None,
                            milli=max(shares, default=0),
                            slot=None if attempt.slot is None else AttemptKey(attempt.slot.job, attempt.slot.attempt),
                        )
                    )
            case RankEnded(key=ended_rank):
                # What one rank of a gang had is free, while others go on.
                key = AttemptKey(ended_rank.job, ended_rank.attempt)
                closed.extend(replace(each, end=number) for each in open_[key] if each.rank == ended_rank.rank)
                open_[key] = [each for each in open_[key] if each.rank != ended_rank.rank]
            case AttemptEnded(job=job, ended=ended):
                close(job, ended.number, number)
            case AttemptVoided(job=job, number=void):
                close(job, void, number, is_void=True)
            case JobFinished(job=job, ended=EndedAttempt() as ended):
                close(job, ended.number, number)
            case _:
                pass
    return (*closed, *(each for holds in open_.values() for each in holds))


def _outputs(shelf: SegmentStore, jobs: Iterable[int]) -> dict[StreamKey, Output]:
    found: dict[StreamKey, Output] = {}
    with closing(SegmentedOutputStore(shelf, OutputLimits())) as store:
        for job in jobs:
            for key, stream in store.streams(JobId(job)):
                name = StreamKey(key.job, key.attempt, key.rank, int(stream))
                found[name] = compared(name, _pieces(store, key, stream))
    return found


def _pieces(store: SegmentedOutputStore, key: Any, stream: Any) -> Iterator[bytes]:
    offset = 0
    while (piece := store.read(key, stream, offset, READ_BYTES)) is not None:
        assert isinstance(piece, Piece), f"a drill writes less than the limit of an attempt: {piece}"
        yield piece.data
        offset += len(piece.data)


# --- the jobs themselves, and the logs


def _runs(folder: Path) -> Iterator[Run]:
    for file in sorted(folder.glob("*")):
        job, attempt, rank, pid, _ = map(int, file.name.split("."))
        stamps = [line.split() for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not stamps:  # ended before its first word
            continue
        _, began, who, node, devices = stamps[0]
        last = stamps[-1]
        code = int(last[2]) if last[0] == "ended" else None
        yield Run(
            attempt=AttemptKey(job, attempt),
            rank=rank,
            pid=pid,
            who=who,
            node=node,
            devices=() if devices == "-" else tuple(devices.split(",")),
            began_ns=int(began),
            seen_ns=int(last[1]),
            code=code,
            written={1: int(last[-2]), 2: int(last[-1])} if len(stamps) > 1 and who == "leader" else {},
        )


def _lines_of(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines() if file.exists() else ():
        yield json.loads(line)


def _loot(folder: Path) -> Iterator[str]:
    """What hostile jobs got that they must not have."""
    for file in sorted(folder.iterdir()) if folder.exists() else ():
        yield from file.read_text(errors="replace").splitlines()


def _tracebacks(folder: Path) -> Iterator[str]:
    """A program that prints one has met what it does not expect."""
    for log in sorted(folder.rglob("*log*")):
        if log.is_file():
            text = log.read_text(errors="replace")
            if (at := text.find(TRACEBACK)) >= 0:
                yield f"{log.relative_to(folder)}: {text[at : at + TRACEBACK_CHARS]}"
