"""One event: exactly these records and commands, and nothing else. What transcripts do not show stands here."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import get_args

import pytest

from gpufleet.jobs.runs import ExitCode
from scheduler.core import groups
from scheduler.core.deadlines import REQUESTS_PER_SWEEP, wake_at
from scheduler.core.group_story import MEMBERS_TOLD
from scheduler.core.story import sentence, tell
from scheduler.state.access import Role, Token
from scheduler.state.attempts import Attempt, OutputEnd, OutputStream, Placement, Rank, RankExit
from scheduler.state.commands import LaunchAttempt
from scheduler.state.events import (
    CancelRequested,
    GapReleaseRequested,
    HoldRequested,
    InventoryReported,
    JobsSubmitted,
    LoginProven,
    LogoutRequested,
    NodeApprovalRequested,
    NodeBeat,
    NodeRevokeRequested,
    OutputSynced,
    RankExited,
    RankStarted,
    ReportedExited,
    SecretRemovalRequested,
    SetupReported,
    TokenRequested,
    WantedJob,
)
from scheduler.state.ids import JobId, NodeName, RankKey, SecretName, TokenId, UserName
from scheduler.state.jobs import Running
from scheduler.state.limits import Limits
from scheduler.state.nodes import Reachability
from scheduler.state.records import AttemptEnded, AttemptPlaced, AttemptStarted, JobFinished, Record
from scheduler.state.replies import Done, Refused, Submitted
from scheduler.state.sessions.records import SessionRecord
from scheduler.state.specs import Band
from scheduler.state.units import DAY, GB, HOUR, MINUTE, SECOND, Instant, Span, after
from tests.core.fleet import BEGIN, Fleet, Turn, spec
from tests.core.sessions.test_programs import announced, joins_as
from tests.core.test_lineages import origin as origin_of
from tests.core.test_membership import N1 as N1_JOINED
from tests.core.test_membership import fleet_with_token, joins
from tests.core.test_properties import OFTEN, STEPS, World
from tests.core.test_secrets import of
from tests.core.transcript import Transcript

pytestmark = pytest.mark.slow

ALICE = UserName("alice")
KEY = RankKey(JobId(1), 1, 0)
N1 = NodeName("n1")


def with_node(**what: object) -> Fleet:
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", **what))  # type: ignore[arg-type]
    return fleet


def nothing_followed(turn: Turn) -> bool:
    return not turn.records and not turn.commands


def test_a_launch_carries_all_that_the_node_needs() -> None:
    fleet = with_node(gpus=2, memory_bytes=80 * GB)
    asked = spec(gpus=1, cpus=2, requeue_fence=Span(5 * MINUTE))
    turn = fleet.submit(asked)
    placement = Placement(
        node=N1,
        agent_id="agent-n1",
        boot_id="boot-1",
        devices=turn.records[1].attempt.ranks[0].placement.devices,  # type: ignore[union-attr]
        cpus=2,
        method=turn.records[1].attempt.ranks[0].placement.method,  # type: ignore[union-attr]
    )
    assert turn.records[1:] == (
        AttemptPlaced(
            at=BEGIN,
            job=JobId(1),
            attempt=Attempt(number=1, placed_at=BEGIN, ranks=(Rank(placement=placement),)),
        ),
    )
    assert turn.commands == (
        LaunchAttempt(
            node=N1,
            key=KEY,
            spec=asked,
            user=ALICE,
            placement=placement,
            fence=Span(5 * MINUTE),
            min_memory_bytes=8 * GB,
            nodes=(N1,),
            submitted_at=BEGIN,
            placed_at=BEGIN,
            run_number=1,
        ),
    )


@pytest.mark.parametrize(
    ("is_requeueable", "fence", "told"),
    [(True, None, Limits().requeue_fence), (True, Span(MINUTE), Span(MINUTE)), (False, Span(MINUTE), None)],
)
def test_only_what_may_be_replaced_is_fenced(is_requeueable: bool, fence: Span | None, told: Span | None) -> None:
    turn = with_node().submit(spec(is_requeueable=is_requeueable, requeue_fence=fence))
    assert [command.fence for command in turn.commands if isinstance(command, LaunchAttempt)] == [told]


def test_the_start_of_a_rank_is_reckoned_back_from_how_long_it_ran_but_never_before_its_placement() -> None:
    fleet = with_node()
    fleet.submit(spec())
    fleet.now = after(fleet.now, 10 * SECOND)
    for run_span, started_at in ((3 * SECOND, after(BEGIN, 7 * SECOND)), (HOUR, BEGIN)):
        again = Fleet()
        again.join(again.add_node("n1"))
        again.submit(spec())
        again.now = fleet.now
        turn = again.take_up(RankStarted(at=again.now, node=N1, key=KEY, run_span=Span(run_span)))
        assert turn.records == (AttemptStarted(at=again.now, key=KEY, started_at=started_at),)
        assert turn.commands == ()
        assert again.job(1).state == Running(attempt=again.job(1).attempt, started_at=started_at)  # type: ignore[arg-type]


def test_a_report_that_comes_twice_changes_nothing_the_second_time() -> None:
    fleet = with_node()
    fleet.submit(spec())
    started = RankStarted(at=fleet.now, node=N1, key=KEY)
    fleet.take_up(started)
    assert nothing_followed(fleet.take_up(started))


def test_a_beat_that_says_nothing_new_leaves_no_record() -> None:
    fleet = with_node(gpus=2)
    assert nothing_followed(fleet.beat(N1))


def test_an_end_is_forgotten_only_with_the_record_of_it() -> None:
    fleet = with_node()
    fleet.submit(spec())
    end = OutputEnd(rank=0, stream=OutputStream.STDOUT, end_offset=7)
    exit_ = RankExit(exit=ExitCode(code=0), reason="EXITED", output_ends=(end,))
    assert nothing_followed(fleet.take_up(RankExited(at=fleet.now, node=N1, key=KEY, exit=exit_)))
    assert nothing_followed(fleet.take_up(OutputSynced(at=fleet.now, key=KEY, ends=(replace(end, end_offset=6),))))
    turn = fleet.take_up(OutputSynced(at=fleet.now, key=KEY, ends=(end,)))
    assert [type(record) for record in turn.records] == [JobFinished]
    assert [tell(record) for record in turn.records] == ["JobFinished 1 SUCCEEDED"]
    assert len(turn.commands) == 1


def test_an_end_behind_which_more_is_stored_counts_as_one_of_incomplete_output() -> None:
    """Whatever lies there is not of this rank alone, and nobody is to take it for its output."""
    for more, is_complete in ((0, True), (1, False)):
        fleet = with_node()
        fleet.submit(spec())
        end = OutputEnd(rank=0, stream=OutputStream.STDOUT, end_offset=7)
        exit_ = RankExit(exit=ExitCode(code=0), reason="EXITED", output_ends=(end,))
        fleet.take_up(RankExited(at=fleet.now, node=N1, key=KEY, exit=exit_))
        stored = replace(end, end_offset=7 + more)
        (record,) = fleet.take_up(OutputSynced(at=fleet.now, key=KEY, ends=(stored,))).records
        assert isinstance(record, JobFinished) and record.ended is not None
        assert record.ended.output_is_complete == is_complete


def test_a_report_of_another_node_ends_nothing() -> None:
    fleet = with_node()
    fleet.join(fleet.add_node("n2"))
    fleet.submit(spec())
    holder = fleet.job(1).attempt.ranks[0].placement.node  # type: ignore[union-attr]
    other = NodeName("n2" if holder == "n1" else "n1")
    exit_ = RankExit(exit=ExitCode(code=0), reason="EXITED")
    assert fleet.take_up(RankExited(at=fleet.now, node=other, key=KEY, exit=exit_)).records == ()
    assert fleet.job(1).attempt is not None


def test_an_inventory_of_a_node_that_is_not_registered_is_refused_and_leaves_no_trace() -> None:
    fleet = Fleet()
    node = fleet.add_node("n1")
    turn = fleet.inventory(node)
    assert isinstance(turn.reply, Refused)
    assert nothing_followed(turn)
    assert fleet.state.live.nodes == {}


@pytest.mark.parametrize("change", [{"incarnation": 0}, {"boot_id": "boot-0"}, {"agent_id": "another"}])
def test_an_inventory_of_an_older_start_is_refused(change: dict[str, object]) -> None:
    fleet = with_node()
    before = replace(fleet.state.live.nodes[N1])
    event = InventoryReported(
        at=fleet.now,
        node=N1,
        agent_id="agent-n1",
        incarnation=1,
        sequence=9,
        stream=9,
        boot_id="boot-1",
        info=fleet.nodes[N1].info,
        entries=(),
    )
    turn = fleet.take_up(replace(event, **change))  # type: ignore[arg-type]
    assert isinstance(turn.reply, Refused)
    assert nothing_followed(turn)
    assert fleet.state.live.nodes[N1] == before


def test_an_inventory_that_arrives_behind_a_newer_one_ends_nothing() -> None:
    """Its agent gave the stream up, opened the next one, and was asked on that to launch."""
    fleet = with_node()
    fleet.inventory(fleet.nodes[N1])
    fleet.submit(spec())
    fleet.take_up(RankStarted(at=fleet.now, node=N1, key=KEY, run_span=Span(0)))
    fleet.disconnect(N1)
    before = replace(fleet.state.live.nodes[N1])
    late = InventoryReported(
        at=fleet.now,
        node=N1,
        agent_id="agent-n1",
        incarnation=1,
        sequence=before.stream - 1,
        stream=before.stream + 1,
        boot_id="boot-1",
        info=fleet.nodes[N1].info,
        entries=(),
    )
    turn = fleet.take_up(late)
    assert isinstance(turn.reply, Refused)
    assert nothing_followed(turn)
    assert fleet.state.live.nodes[N1] == before
    lost = fleet.take_up(replace(late, sequence=before.stream + 1))
    assert [record.ended.reason for record in lost.records if isinstance(record, AttemptEnded)] == ["NODE_LOST"]


def test_another_start_of_an_agent_counts_its_messages_anew() -> None:
    fleet = with_node()
    node = fleet.nodes[N1]
    fleet.inventory(node)
    node.incarnation = 2
    fleet.announce(node)
    turn = fleet.take_up(
        InventoryReported(
            at=fleet.now,
            node=N1,
            agent_id="agent-n1",
            incarnation=2,
            sequence=1,
            stream=9,
            boot_id="boot-1",
            info=node.info,
            entries=(),
        )
    )
    assert not isinstance(turn.reply, Refused)
    assert fleet.state.live.nodes[N1].stream == 9


def test_a_beat_of_an_older_stream_keeps_nobody_alive() -> None:
    fleet = with_node()
    fleet.now = after(fleet.now, 5 * SECOND)
    fleet.take_up(NodeBeat(at=fleet.now, node=N1, stream=fleet.nodes[N1].stream - 1))
    assert fleet.state.live.nodes[N1].heard_at == BEGIN


def test_every_word_of_a_node_counts_as_hearing_it() -> None:
    """The node is told that it was heard, and its keeper counts the fence from there: the scheduler must, too."""
    fleet = with_node()
    fleet.submit(spec())
    fleet.now = after(fleet.now, 5 * SECOND)
    fleet.take_up(RankStarted(at=fleet.now, node=N1, key=KEY))
    assert fleet.state.live.nodes[N1].heard_at == fleet.now


def test_a_cancel_names_who_asked_and_why() -> None:
    fleet = Fleet()
    fleet.submit(spec())
    turn = fleet.take_up(CancelRequested(at=fleet.now, by=UserName("bob"), jobs=(JobId(1),), reason="old"))
    (record,) = turn.records
    assert isinstance(record, JobFinished)
    assert record.finished.message == "cancelled by bob: old"


def test_all_jobs_of_a_submit_are_taken_or_none() -> None:
    fleet = with_node(cpus=4)
    turn = fleet.submit(spec(), spec(cpus=5))
    assert isinstance(turn.reply, Refused)
    assert turn.reply.field.startswith("specs[1]")
    assert nothing_followed(turn)
    assert fleet.state.durable.counters.next_job == 1


def test_what_the_nodes_could_hold_is_asked_anew_when_one_changes() -> None:
    fleet = with_node(cpus=4)

    def answer(cpus: int) -> str:
        reply = fleet.submit(spec(cpus=cpus), held=True).reply
        return reply.reason if isinstance(reply, Refused) else "taken"

    assert [answer(4), answer(4), answer(5)] == ["taken", "taken", "NEVER_FITS"]
    node = fleet.nodes[N1]
    fleet.join(replace(node, info=replace(node.info, cpus=2), incarnation=2))
    assert [answer(4), answer(2)] == ["NEVER_FITS", "taken"]
    fleet.join(fleet.add_node("n2", cpus=8))
    assert [answer(4), answer(5)] == ["taken", "taken"]


def test_ids_are_never_given_twice_and_a_dry_run_takes_none() -> None:
    fleet = Fleet()
    submit = JobsSubmitted(at=fleet.now, user=ALICE, jobs=(WantedJob(spec=spec(), band=Band.NORMAL),), is_dry_run=True)
    dry = fleet.take_up(submit).reply
    assert isinstance(dry, Submitted)
    assert (dry.first, dry.count) == (0, 1)
    first = fleet.take_up(replace(submit, is_dry_run=False)).reply
    assert isinstance(first, Submitted)
    fleet.take_up(CancelRequested(at=fleet.now, by=ALICE, jobs=(first.first,)))
    fleet.restart()
    second = fleet.take_up(replace(submit, is_dry_run=False)).reply
    assert isinstance(second, Submitted)
    assert (first.first, second.first) == (1, 2)


# --- when time alone brings something


def test_nothing_waits_for_time_in_an_empty_fleet() -> None:
    assert wake_at(Fleet().state) is None


def test_a_silent_node_is_looked_at_when_it_becomes_suspect_then_lost_then_given_up() -> None:
    fleet = with_node()
    fleet.submit(spec())
    fleet.nodes[N1].is_connected = False
    seen = []
    for _ in range(3):
        deadline = wake_at(fleet.state)
        assert deadline is not None
        seen.append((deadline - BEGIN) // SECOND)
        list(fleet.advance(deadline - fleet.now))
    assert seen == [6, 60, 600]
    assert fleet.state.live.nodes[N1].reach is Reachability.SUSPECT


def test_old_requests_of_jobs_that_live_do_not_make_the_loop_spin() -> None:
    fleet = with_node()
    fleet.take_up(
        JobsSubmitted(
            at=fleet.now,
            user=ALICE,
            jobs=(WantedJob(spec=spec(is_requeueable=False), band=Band.NORMAL),),
            request_id="r",
        )
    )
    fleet.nodes[N1].is_connected = False
    list(fleet.advance(2 * DAY))  # `advance` asserts that a deadline, once carried out, is not asked for again
    fleet.now = after(fleet.now, 1)
    deadline = wake_at(fleet.state)
    assert deadline is None or deadline > fleet.now


def test_forgetting_old_requests_takes_a_bounded_number_at_a_time() -> None:
    fleet = Fleet(Limits(request_retention=Span(MINUTE), queued_jobs=10**6), passes=False)
    event = JobsSubmitted(at=fleet.now, user=ALICE, jobs=(WantedJob(spec=spec(), band=Band.NORMAL, is_held=True),))
    assert REQUESTS_PER_SWEEP == 10_000
    for number in range(5):
        fleet.take_up(replace(event, request_id=f"r{number}"))
        fleet.take_up(CancelRequested(at=fleet.now, by=ALICE, jobs=(JobId(number + 1),)))
    list(fleet.advance(2 * MINUTE))
    assert fleet.state.durable.requests == {}


# --- the story


def test_every_kind_of_record_can_be_told_to_people_and_in_short() -> None:
    wanted = {kind.__name__ for kind in get_args(Record)} - NOT_MET - OF_SESSIONS
    wanted -= (
        _read(_fallen_back())
        | _read(_postponed())
        | _read(_let_in_and_out())
        | _read(_kept_and_dropped())
        | _read(_traded_and_renewed())
        | _read(_logged_in_and_out())
        | _read(_made_and_forgotten())
        | _read(_put_back())
        | _read(_probed())
        | _read(_set_up_and_left())
        | _read(_kept_for_the_next_attempt())
        | _read(_asked_back())
        | _read(_made_ready())
        | _read(_asked_of_many_at_once())
    )
    for seed in range(LIVES_MAX):
        wanted -= _read(_of_a_life(random.Random(seed)))
        if not wanted:
            return
    pytest.fail(f"no sentence of {sorted(wanted)} was read")


LIVES_MAX = 100
"""Of each kind that has no life of its own below, one of ten and more of these lives has one."""

NOT_MET = {"RankEnded"}
"""Gangs are not placed yet."""

OF_SESSIONS = {*(kind.__name__ for kind in get_args(SessionRecord)), "WorkerDrained"}
"""They are met in test_sessions.py and in the transcripts of sessions."""


def _of_a_life(rng: random.Random) -> list[Record]:
    """The records of a fleet that has lived through a lot."""
    world = World()
    for name in rng.choices((*STEPS, *OFTEN), k=100):
        world.run(name, rng.randrange(32), rng.randrange(32), rng.randrange(32))
    return world.fleet.store.records


def _fallen_back() -> list[Record]:
    """The records of a job and of items that wait for a GPU for so long that they do without; no life has such jobs."""
    transcript = Transcript()
    transcript.answer("node n1 gpus=1")
    transcript.answer("submit alice gpus=1")
    transcript.answer("submit alice gpus=1 gpu-mode=preferred")
    transcript.answer("submit alice gpus=1 gpu-mode=preferred array=1-3")
    transcript.answer("advance 2m")
    return transcript.fleet.store.records


def _postponed() -> list[Record]:
    """The records of a job and of items that prefer GPUs, while CPUs are what they lack."""
    transcript = Transcript()
    for line in (
        "node n1 gpus=2 cpus=4",
        "submit alice gpus=1 cpus=3",
        "submit alice gpus=1 cpus=2 gpu-mode=preferred",
        "submit alice gpus=1 cpus=2 gpu-mode=preferred array=1-3",
        "advance 2m",
    ):
        transcript.answer(line)
    return transcript.fleet.store.records


def _asked_of_many_at_once() -> list[Record]:
    """The records of items that are held, let go, changed and moved as one, and of what seldom befalls a job."""
    transcript = Transcript()
    for line in (
        "node n1 gpus=1",
        "submit alice gpus=1",
        "started 1/1",
        "signal 1 10",
        "enter 1/1 8888",
        "submit alice gpus=1 array=1-3",
        "submit alice gpus=1 after=1",
        "hold 2 3 4",
        "release 2 3 4",
        "update 2 3 4 name=another",
        "band 2 3 4 low",
        "hold 5",
        "release 5",
        "exited 1/1 code=0",
    ):
        transcript.answer(line)
    return transcript.fleet.store.records


def _let_in_and_out() -> list[Record]:
    """The records of a node that joined by a token, and was revoked and approved."""
    fleet = fleet_with_token()
    joins(fleet)
    fleet.take_up(NodeRevokeRequested(at=fleet.now, by=ALICE, node=N1_JOINED, reason="stolen"))
    fleet.take_up(NodeApprovalRequested(at=fleet.now, by=ALICE, node=N1_JOINED))
    return fleet.store.records


def _traded_and_renewed() -> list[Record]:
    """The records of a gateway that traded its token, and renewed what it got."""
    fleet = Fleet()
    credential = joins_as("gateway-1", fleet)
    fleet.take_up(announced(fleet, credential, "gateway-1", "next"))
    return fleet.store.records


def _kept_and_dropped() -> list[Record]:
    """The records of a secret that was set and removed."""
    fleet = Fleet()
    fleet.take_up(of(ALICE, "key"))
    fleet.take_up(SecretRemovalRequested(at=fleet.now, by=ALICE, user=ALICE, name=SecretName("key")))
    return fleet.store.records


def _probed() -> list[Record]:
    """The records of a node that was found to see a shared folder."""
    transcript = Transcript()
    for line in ("node n1 root=team", "probed n1 team"):
        transcript.answer(line)
    return transcript.fleet.store.records


def _set_up_and_left() -> list[Record]:
    """The records of a job whose environment was made first, whose results were stored, and one of its notices not."""
    transcript = Transcript()
    for line in ("node n1 cpus=4", "submit alice results=out"):
        transcript.answer(line)
    fleet, key = transcript.fleet, RankKey(JobId(1), 1, 0)
    fleet.take_up(SetupReported(at=fleet.now, node=N1, key=key, is_ready=True, message="made with pip in 12 s"))
    fleet.take_up(SetupReported(at=fleet.now, node=N1, key=key, is_ready=False, message="1GB of 4GB", image="a:1"))
    for line in ("started 1/1", "untold 1/1 start", "exited 1/1 code=0", "synced 1/1", "left 1/1 stored"):
        transcript.answer(line)
    return fleet.store.records


def _kept_for_the_next_attempt() -> list[Record]:
    """The records of a job whose attempt kept something, which came before it was placed again."""
    transcript = Transcript()
    begun = ("node n1 cpus=4", "submit alice keep=ckpt requeue-on-timeout time-limit=1h", "started 1/1")
    for line in (*begun, "checkpoint 1/1 copy", "exited 1/1 by-time-limit", "synced 1/1", "left 1/1 stored kept=copy"):
        transcript.answer(line)
    return transcript.fleet.store.records


def _put_back() -> list[Record]:
    """The records of a store that was put back from a copy of before job 41, until nothing waits for that any more."""
    fleet = Fleet(replace(Limits(), unreachable_span=Span(2 * MINUTE), requeue_fence=Span(MINUTE)))
    node = fleet.add_node("n1", gpus=1)
    fleet.join(node)
    fleet.submit(*[spec(gpus=1)] * 3)
    fleet.put_back(fleet.copy(), jobs_above=41)
    fleet.take_up(HoldRequested(at=fleet.now, by=ALICE, jobs=(JobId(2),), is_held=False))
    fleet.announce(node)
    told = [(RankKey(JobId(number), 1, 0), origin_of(fleet, 3)) for number in (3, 4)]
    gang = RankKey(JobId(2), 1, 0)
    told.append((gang, replace(origin_of(fleet, 2), node_count=2)))
    ended = ReportedExited(exit=RankExit(exit=ExitCode(code=0), reason="EXITED"))
    fleet.inventory(node, (), [(key, ended) for key, _ in told], told)
    fleet.take_up(GapReleaseRequested(at=fleet.now, by=ALICE))
    fleet.take_up(OutputSynced(at=fleet.now, key=told[0][0], ends=()))
    fleet.beat(node.name)
    assert list(fleet.advance(Span(3 * MINUTE)))
    return fleet.store.records


def _logged_in_and_out() -> list[Record]:
    """Logins of one user: the first is ended, and forgotten with the next."""
    fleet = Fleet()
    for name in ("first", "next"):
        login = Token(
            id=TokenId(name), user=ALICE, role=Role.USER, digest=name, created_at=fleet.now, login="password 1"
        )
        fleet.take_up(LoginProven(at=fleet.now, token=login))
        fleet.take_up(LogoutRequested(at=fleet.now, by=ALICE, token=login.id))
    return fleet.store.records


def _made_and_forgotten() -> list[Record]:
    """The records of groups: with all rules and with none, renamed, removed, and forgotten when the next one goes."""
    transcript = Transcript()
    everybody = ",".join(f"u{number}" for number in range(MEMBERS_TOLD + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "REMOVED_GROUPS_KEPT", 1)
        for line in (
            f"group ml gpus=8 hours=500 max-band=high shares=3 add={everybody}",
            "group ml to=speech",
            "group vision",
            "group speech end",
            "group vision end",
        ):
            transcript.answer(line)
    return transcript.fleet.store.records


def _asked_back() -> list[Record]:
    """The records of jobs that wait in a backlog when somebody comes to stand before them."""
    return _records_of(
        "node n1 gpus=1 backlog",
        "submit alice gpus=1 time-limit=1s",
        "started 1/1",
        "submit alice gpus=1 time-limit=1s count=3",
        "submit bob gpus=1 band=high",
    )


def _made_ready() -> list[Record]:
    """The records of a gang that comes about: few lives have one."""
    return _records_of(
        "node n1 gpus=1",
        "node n2 gpus=1",
        "submit alice gpus=2 nodes=2",
        "ready 1/1.1",
        "ready 1/1.0 port=29500",
    )


def _records_of(*lines: str) -> list[Record]:
    transcript = Transcript()
    for line in lines:
        transcript.answer(line)
    return transcript.fleet.store.records


def _read(told: list[Record]) -> set[str]:
    """The kinds of these records, each of which was read."""
    for record in told:
        for text in (sentence(record), tell(record)):
            assert text
            assert "None" not in text
            assert "object at" not in text
        assert sentence(record).endswith(".")
    return {type(record).__name__ for record in told}


def test_a_token_is_made_once() -> None:
    fleet = Fleet()
    token = Token(id=TokenId("ci"), user=ALICE, role=Role.USER, digest="00", created_at=Instant(0))
    event = TokenRequested(at=fleet.now, by=ALICE, token=token)
    assert isinstance(fleet.take_up(event).reply, Done)
    again = fleet.take_up(event)
    assert isinstance(again.reply, Refused)
    assert nothing_followed(again)
