"""Visits are counted once, whatever happens between a commit and the file; and what they come to is exact."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.errors import GpufleetError, Reason
from scheduler.ports import Commit, StoredRecord
from scheduler.series import visit_log, visits
from scheduler.series.visit_log import VisitLog
from scheduler.series.visits import GIVE_UPS, Found, Visitors
from scheduler.state.sessions.records import (
    ClaimMissed,
    SessionEnded,
    SessionJoined,
    SessionRecord,
    SessionRequeued,
    TurnGranted,
)
from scheduler.state.sessions.session import EndReason, Identity, ModelName, Session, SessionId, WorkerId
from scheduler.state.units import DAY, SECOND, Instant, Span, after
from tests.engine.fakes import BEGIN, FakeStore
from tests.rings.choosing import examples

MODEL = ModelName("canvas")
W = WorkerId("w1")


class House:
    """A store whose records are committed one by one, and a log of visits beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FakeStore()
        self.now = BEGIN
        self.start()

    def start(self) -> None:
        """A scheduler starts."""
        self.log = VisitLog(self.store, lambda: self.now, lambda: Span(30 * DAY), self.folder)

    def do(self, *records: SessionRecord) -> None:
        sequence = self.store.newest_sequence()
        for number, record in enumerate(records, sequence + 1):
            self.store.records.append(StoredRecord(sequence=number, at=record.at, record=record))
        commit = Commit(number=1, at=self.now, records=records, upserts=(), finished=(), deletes=())
        self.log.take_commit(commit, self.store.newest_sequence())

    def joined(self, number: int, at: int, person: str = "", model: ModelName = MODEL) -> None:
        session = Session(
            id=SessionId(number),
            model=model,
            identity=Identity(person or f"person {number}"),
            key_digest=str(number),
            joined_at=after(BEGIN, Span(at)),
        )
        self.do(SessionJoined(at=session.joined_at, session=session))

    def granted(self, number: int, at: int) -> None:
        self.do(TurnGranted(at=after(BEGIN, Span(at)), session=SessionId(number), model=MODEL, worker=W, epoch=1))

    def missed(self, number: int, at: int) -> None:
        self.do(ClaimMissed(at=after(BEGIN, Span(at)), session=SessionId(number), model=MODEL))

    def requeued(self, number: int, at: int) -> None:
        moment = after(BEGIN, Span(at))
        self.do(SessionRequeued(at=moment, session=SessionId(number), model=MODEL, used=Span(0), worker_deaths=0))

    def ended(self, number: int, at: int, reason: EndReason) -> None:
        moment = after(BEGIN, Span(at))
        self.do(SessionEnded(at=moment, session=SessionId(number), model=MODEL, reason=reason, message=""))

    async def read(self, model: str = "") -> Found:
        found, _ = await self.log.read(BEGIN, after(BEGIN, Span(10 * DAY)), DAY, model)
        return found

    async def of(self, model: ModelName = MODEL) -> Visitors:
        return (await self.read())[model][0]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_people_turns_waits_and_give_ups_are_counted_by_the_day_of_joining(house: House) -> None:
    house.joined(1, 0, "ann")
    house.granted(1, 4 * SECOND)
    house.ended(1, 64 * SECOND, EndReason.TURN_ENDED)
    house.joined(2, 10 * SECOND, "bob")
    house.granted(2, 64 * SECOND)
    house.missed(2, 74 * SECOND)
    house.ended(2, 90 * SECOND, EndReason.CLAIM_TIMEOUT)
    house.joined(3, 20 * SECOND, "eve")
    house.ended(3, 25 * SECOND, EndReason.LEFT)
    house.joined(4, 30 * SECOND, "fay")
    house.ended(4, 35 * SECOND, EndReason.CLOSED)
    house.joined(5, DAY + SECOND, "ann")
    house.granted(5, DAY + 3 * SECOND)
    house.requeued(5, DAY + 13 * SECOND)
    house.granted(5, DAY + 20 * SECOND)
    house.ended(5, DAY + 50 * SECOND, EndReason.LEFT)
    found = await house.read()
    whole, steps = found[MODEL]
    assert (len(whole.people), whole.visits, whole.turns, whole.give_ups) == (4, 5, 3, 2)
    assert whole.ends == {"TURN_ENDED": 1, "CLAIM_TIMEOUT": 1, "LEFT": 2, "CLOSED": 1}
    assert (whole.wait(0.5), whole.wait(0.95), whole.turn_span) == (2 * SECOND, 4 * SECOND, (60 + 10 + 30) * SECOND)
    assert {day: (len(each.people), each.turns, each.give_ups) for day, each in steps.items()} == {
        0: (4, 1, 2),
        1: (1, 2, 0),
    }
    assert steps[1].wait(0.95) == 2 * SECOND
    assert Visitors().wait(0.5) is None
    house.log.close()


async def test_who_waits_or_plays_at_this_moment_counts_up_to_now(house: House) -> None:
    house.joined(1, 0)
    house.joined(2, 0)
    house.granted(2, 5 * SECOND)
    house.now = after(BEGIN, Span(30 * SECOND))
    whole = await house.of()
    assert (whole.visits, whole.turns, whole.turn_span, whole.ends) == (2, 1, 25 * SECOND, {})
    assert whole.wait(0.5) == 5 * SECOND
    assert await house.read("another") == {}
    house.log.close()


async def test_visits_of_a_history_that_the_store_has_lost_are_counted_anew(house: House) -> None:
    house.joined(1, 0)
    copy = house.store.reopened(7)
    house.joined(2, SECOND)
    house.joined(3, SECOND)
    assert (await house.of()).visits == 3
    house.log.close()
    house.store = copy
    house.start()
    house.joined(2, DAY, "another")
    house.ended(1, DAY, EndReason.LEFT)
    whole = await house.of()
    assert (whole.visits, whole.ends, len(whole.people)) == (2, {"LEFT": 1}, 2)
    house.log.close()


happenings = st.lists(
    st.one_of(
        st.sampled_from(["write", "crash", "lose the file"]),
        st.tuples(st.integers(1, 6), st.sampled_from(["grant", "miss", "requeue", *EndReason])),
    ),
    max_size=40,
)


@settings(max_examples=examples(60))
@given(happenings)
def test_whatever_happens_the_file_says_what_the_records_do(happened: list[object]) -> None:
    async def run(folder: Path) -> None:
        house = House(folder)
        state: dict[int, str] = {}
        turns, ends, give_ups, had = 0, dict[str, int](), 0, dict[int, int]()
        number = 0
        for at, each in enumerate(happened, 1):
            moment = at * SECOND
            match each:
                case "write":
                    assert await house.log.write()
                case "crash" | "lose the file":
                    house.log.close()
                    if each == "lose the file":
                        lose(folder)
                    house.start()
                case (int(who), what):
                    if who not in state:
                        number += 1
                        house.joined(number, moment, str(who))
                        state[who], had[who] = "waits", 0
                        continue
                    session = ids(house)[str(who)]
                    match what, state[who]:
                        case "grant", "waits":
                            house.granted(session, moment)
                            state[who] = "seated"
                        case "miss", "seated":
                            house.missed(session, moment)
                            state[who] = "waits"
                        case "requeue", "seated":
                            house.requeued(session, moment)
                            state[who], had[who], turns = "waits", had[who] + 1, turns + 1
                        case EndReason() as reason, now:
                            house.ended(session, moment, reason)
                            if now == "seated" and reason is not EndReason.CLAIM_TIMEOUT:
                                had[who], turns = had[who] + 1, turns + 1
                            give_ups += reason in GIVE_UPS and not had[who]
                            ends[reason.value] = ends.get(reason.value, 0) + 1
                            del state[who]
                        case _:
                            pass
                case other:
                    raise AssertionError(other)
        found = await house.read()
        whole = found[MODEL][0] if found else Visitors()
        turns += sum(1 for each in state.values() if each == "seated")
        assert (whole.visits, whole.turns, whole.give_ups, whole.ends) == (number, turns, give_ups, ends)
        house.log.close()

    folder = Path(tempfile.mkdtemp())
    try:
        asyncio.run(run(folder))
    finally:
        shutil.rmtree(folder)


def lose(folder: Path) -> None:
    for file in folder.glob("visits.db*"):
        file.unlink()


def ids(house: House) -> dict[str, int]:
    """The newest session of each person."""
    joined = (each.record.session for each in house.store.records if isinstance(each.record, SessionJoined))
    return {session.identity: session.id for session in joined}


async def test_more_than_may_wait_is_counted_from_the_store(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit_log, "RECORDS_WAITING_MAX", 5)
    monkeypatch.setattr(visit_log, "RECORDS_AT_ONCE", 4)
    assert await house.log.write()
    for number in range(1, 24):
        house.joined(number, number * SECOND)
    assert (await house.of()).visits == 23
    house.log.close()


async def test_a_file_of_a_store_that_is_gone_is_begun_anew(tmp_path: Path) -> None:
    first = House(tmp_path)
    for number in range(1, 4):
        first.joined(number, 0)
    assert await first.log.write()
    first.log.close()
    other = House(tmp_path)
    other.joined(1, 0)
    assert (await other.of()).visits == 1
    other.log.close()


async def test_old_visits_and_those_beyond_the_bound_are_dropped_and_it_is_told_since_when(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 8):
        house.joined(number, number * SECOND)
        if number != 7:
            house.ended(number, number * SECOND, EndReason.LEFT)
    assert await house.log.write()
    assert await house.log.prune(after(BEGIN, Span(3 * SECOND))) == 2
    monkeypatch.setattr(visits, "VISITS_MAX", 3)
    assert await house.log.prune(Instant(0)) == 2
    found, known_since = await house.log.read(BEGIN, after(BEGIN, Span(DAY)), DAY, "")
    assert found[MODEL][0].visits == 3
    assert known_since > after(BEGIN, Span(3 * SECOND))
    house.log.close()


async def test_what_cannot_be_read_now_is_refused_with_when_to_ask_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.joined(1, 0)
    house.log._file.path.mkdir()
    with pytest.raises(GpufleetError) as caught:
        await house.read()
    assert caught.value.reason is Reason.HISTORY_UNAVAILABLE and caught.value.retry_after_s
    house.log._file.path.rmdir()
    assert (await house.of()).visits == 1, "nothing is lost"
    monkeypatch.setattr(visit_log, "READS_MAX", 0)
    with pytest.raises(GpufleetError, match="ask for visits"):
        await house.read()
    house.log.close()
