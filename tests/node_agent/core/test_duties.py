"""What the agent does about orders and changes: one in, exact actions out, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.runs import ExitCode, JobId, RankKey, StopCause
from node_agent.core.actions import (
    Action,
    CarriedOut,
    CheckNode,
    Follow,
    ForgetAttempt,
    Hold,
    LetGo,
    LimitProcess,
    Master,
    Order,
    SignalProcess,
    SpawnAttempt,
    StopProcess,
    Tell,
)
from node_agent.core.adoption import Verdict
from node_agent.core.commands import (
    AbortAttempt,
    AttemptCommand,
    JudgeAttempt,
    LaunchAttempt,
    PrepareAttempt,
    SetTimeLimit,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
)
from node_agent.core.duties import ORDERS_WAITING_MAX, PREPARED_US_MAX, Duties
from node_agent.core.expectations import Expectations, Misfit, Unfit
from node_agent.core.fence import CommandRefusal
from node_agent.core.inventory import Checking, EndReport, InBacklog, Prepared, Refused, StartReport
from node_agent.core.launch import NotRun, Process, Refusal, RefusalReason
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, FullReason, LaunchFailure, Offsets, Stream

KEY = RankKey(JobId(7), 1, 0)
RECEIPT = (1, 5)
LAUNCH = LaunchAttempt(
    key=KEY,
    process=Process(argv=("true",), env={}, cwd="/"),
    expectations=Expectations(device_uuids=("GPU-a",)),
)
RUNNING = AttemptView(key=KEY, phase=AttemptPhase.RUNNING, keeper_id="k", directory="/spool", pid=42, started_us=1_000)
END = AttemptEnd(status=ExitCode(code=0), output_ends=Offsets(5, 0), started_us=1_000, ended_us=2_000)
ENDED = replace(RUNNING, phase=AttemptPhase.ENDED, end=END, output_ends=END.output_ends)


PREPARED = Prepared(LAUNCH, 61500)
START = StartAttempt(KEY, "10.0.0.1", 61500)


def order(command: AttemptCommand, number: int = 5, **fields: object) -> Order:
    return Order(command=command, receipt=(1, number), **fields)  # type: ignore[arg-type]


def running() -> Duties:
    """An agent whose attempt runs."""
    duties = Duties()
    duties.order(order(LAUNCH, 1))
    duties.checked(KEY, None)
    duties.spawned(KEY, RUNNING, was_known=False)
    return duties


def prepared() -> Duties:
    """An agent that holds rank 0 of a gang."""
    duties = Duties()
    duties.order(order(PrepareAttempt(LAUNCH), 1))
    duties.checked(KEY, None, 61500)
    return duties


def refusal_in(action: Action) -> str:
    """The reason that the scheduler is told."""
    assert isinstance(action, Tell) and isinstance(action.report, Refused)
    return action.report.reason


def test_a_launch_is_checked_then_spawned_then_told_and_followed() -> None:
    duties = Duties()
    assert duties.order(order(LAUNCH, heartbeat_sent_us=900)) == (CheckNode(LAUNCH, is_prepare=False),)
    assert duties.inventory[KEY] == Checking(KEY)
    assert duties.checked(KEY, None) == (SpawnAttempt(LAUNCH, None, 900),)
    assert duties.spawned(KEY, RUNNING, was_known=False) == (
        Follow(RUNNING, is_new=True),
        Tell(StartReport(RUNNING)),
        CarriedOut(RECEIPT),
    )


def test_the_fence_of_a_launch_counts_from_the_newest_message_that_the_scheduler_had() -> None:
    duties = Duties()
    assert duties.heartbeat_heard(1_500)
    assert not duties.heartbeat_heard(1_400)
    duties.order(order(LAUNCH, heartbeat_sent_us=900))
    assert duties.checked(KEY, None) == (SpawnAttempt(LAUNCH, None, 1_500),)


def test_a_second_launch_starts_nothing_and_gets_the_same_answer() -> None:
    duties = running()
    assert duties.order(order(LAUNCH)) == (Tell(StartReport(RUNNING)), CarriedOut(RECEIPT))
    duties.changed(KEY, END)
    assert duties.order(order(LAUNCH)) == (Tell(StartReport(ENDED)), Tell(EndReport(ENDED)), CarriedOut(RECEIPT))


def test_a_misfit_refuses_the_launch_for_good() -> None:
    duties = Duties()
    duties.order(order(LAUNCH))
    refused = Refused(KEY, "DEVICE_BUSY", "somebody is there")
    misfit = Misfit(Unfit.DEVICE_BUSY, "somebody is there", ("GPU-a",))
    assert duties.checked(KEY, misfit) == (Tell(refused), CarriedOut(RECEIPT))
    assert duties.order(order(LAUNCH)) == (Tell(refused), CarriedOut(RECEIPT))


def test_what_the_keeper_refuses_is_refused() -> None:
    duties = Duties()
    duties.order(order(LAUNCH))
    duties.checked(KEY, None)
    answer = Refusal(RefusalReason.CWD_MISSING, "there is no folder /x")
    assert duties.spawned(KEY, answer, was_known=False) == (
        Tell(Refused(KEY, "CWD_MISSING", "there is no folder /x")),
        CarriedOut(RECEIPT),
    )


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (RefusalReason.BAD_REQUEST, "INVALID_LAUNCH"),
        (RefusalReason.RETIRED, "KEEPER_UNAVAILABLE"),
        (RefusalReason.SHUTTING_DOWN, "KEEPER_UNAVAILABLE"),
        (RefusalReason.SPOOL_UNAVAILABLE, "SPOOL_UNAVAILABLE"),
    ],
)
def test_the_scheduler_hears_the_keepers_reasons_by_the_names_of_the_contract(reason: RefusalReason, told: str) -> None:
    duties = Duties()
    duties.order(order(LAUNCH))
    duties.checked(KEY, None)
    refused, _ = duties.spawned(KEY, Refusal(reason, "why"), was_known=False)
    assert refused == Tell(Refused(KEY, told, "why"))


def test_a_check_that_could_not_be_made_refuses_the_launch() -> None:
    duties = Duties()
    duties.order(order(LAUNCH))
    refused = Refused(KEY, "SPAWN_FAILED", "too many open files")
    answer = Refusal(RefusalReason.SPAWN_FAILED, "too many open files")
    assert duties.checked(KEY, answer) == (Tell(refused), CarriedOut(RECEIPT))


@pytest.mark.parametrize("refusal", [CommandRefusal.TOO_OLD, CommandRefusal.UNKNOWN_HEARTBEAT])
def test_a_launch_on_old_knowledge_is_refused(refusal: CommandRefusal) -> None:
    duties = Duties()
    told, done = duties.order(order(LAUNCH, refusal=refusal))
    assert isinstance(told, Tell) and isinstance(told.report, Refused)
    assert told.report.reason == "COMMAND_TOO_OLD"
    assert done == CarriedOut(RECEIPT)


def test_an_old_launch_of_what_runs_is_answered_and_not_refused() -> None:
    duties = running()
    again = duties.order(order(LAUNCH, refusal=CommandRefusal.TOO_OLD))
    assert again == (Tell(StartReport(RUNNING)), CarriedOut(RECEIPT))


def test_a_stop_that_comes_while_a_launch_is_checked_waits_for_it() -> None:
    duties = Duties()
    duties.order(order(LAUNCH, 1))
    assert duties.order(order(StopAttempt(KEY, StopCause.CANCELLED, None), 2)) == ()
    duties.checked(KEY, None)
    assert duties.spawned(KEY, RUNNING, was_known=False) == (
        Follow(RUNNING, is_new=True),
        Tell(StartReport(RUNNING)),
        CarriedOut((1, 1)),
        StopProcess(KEY, StopCause.CANCELLED, None),
    )
    assert duties.done(KEY) == (CarriedOut((1, 2)),)
    assert duties.inventory[KEY] == RUNNING


def test_orders_for_different_attempts_do_not_wait_for_each_other() -> None:
    duties = Duties()
    other = replace(LAUNCH, key=RankKey(JobId(8), 1, 0))
    assert duties.order(order(LAUNCH)) == (CheckNode(LAUNCH, is_prepare=False),)
    assert duties.order(order(other)) == (CheckNode(other, is_prepare=False),)


def test_waiting_orders_are_bounded() -> None:
    duties = Duties()
    duties.order(order(LAUNCH))
    for number in range(ORDERS_WAITING_MAX):
        assert duties.order(order(SignalAttempt(KEY, 10), number)) == ()
    assert duties.order(order(SignalAttempt(KEY, 10))) == (CarriedOut(RECEIPT),)


def test_stopping_what_never_came_refuses_it_and_that_holds() -> None:
    duties = Duties()
    told, _ = duties.order(order(StopAttempt(KEY, StopCause.CANCELLED, None)))
    assert isinstance(told, Tell) and isinstance(told.report, Refused)
    assert told.report.reason == "STOPPED_BEFORE_START"
    assert duties.order(order(LAUNCH)) == (told, CarriedOut(RECEIPT))


def test_an_end_that_overtakes_the_answer_to_its_launch_is_not_lost() -> None:
    duties = Duties()
    duties.order(order(LAUNCH))
    duties.checked(KEY, None)
    assert duties.changed(KEY, END) == ()
    actions = duties.spawned(KEY, RUNNING, was_known=False)
    assert Tell(StartReport(RUNNING)) in actions
    assert Tell(EndReport(ENDED)) in actions
    assert duties.inventory[KEY] == ENDED


def test_a_late_answer_to_a_launch_does_not_bring_a_dead_attempt_back() -> None:
    duties = Duties()
    duties.order(order(LAUNCH))
    duties.checked(KEY, None)
    duties.saw(ENDED)
    assert duties.spawned(KEY, RUNNING, was_known=False) == (CarriedOut(RECEIPT),)
    assert duties.inventory[KEY] == ENDED


def test_a_tombstone_tells_its_end_once_more_and_stays_out_of_the_inventory() -> None:
    duties = Duties()
    duties.order(order(LAUNCH))
    duties.checked(KEY, None)
    buried = replace(ENDED, phase=AttemptPhase.FORGOTTEN)
    assert Tell(EndReport(buried)) in duties.spawned(KEY, buried, was_known=True)
    assert tuple(duties.inventory) == ()


def test_forgetting_what_has_ended_drops_it_once_the_keeper_has() -> None:
    duties = running()
    duties.changed(KEY, END)
    assert duties.order(order(JudgeAttempt(KEY, Verdict.FORGET))) == (ForgetAttempt(KEY),)
    assert duties.inventory[KEY] == ENDED
    assert duties.done(KEY) == (CarriedOut(RECEIPT),)
    assert duties.inventory[KEY] is None


def test_a_kill_ends_at_once_and_keeps_the_end_until_it_is_stored() -> None:
    duties = running()
    assert duties.order(order(JudgeAttempt(KEY, Verdict.KILL))) == (StopProcess(KEY, StopCause.STALE, 0),)
    duties.changed(KEY, END)
    duties.done(KEY)
    assert duties.inventory[KEY] == ENDED


def test_forgetting_what_lives_kills_it_first() -> None:
    duties = running()
    assert duties.order(order(JudgeAttempt(KEY, Verdict.FORGET))) == (StopProcess(KEY, StopCause.STALE, 0),)
    duties.done(KEY)
    assert duties.changed(KEY, END) == (Follow(ENDED, is_new=False), Tell(EndReport(ENDED)), ForgetAttempt(KEY))
    duties.done(KEY)
    assert duties.inventory[KEY] is None


def test_keep_tells_an_end_again_and_leaves_the_living_alone() -> None:
    duties = running()
    keep = order(JudgeAttempt(KEY, Verdict.KEEP))
    assert duties.order(keep) == (CarriedOut(RECEIPT),)
    duties.changed(KEY, END)
    assert Tell(EndReport(ENDED)) in duties.order(keep)


def test_a_signal_reaches_what_lives_and_nothing_else() -> None:
    duties = running()
    assert duties.order(order(SignalAttempt(KEY, 10))) == (SignalProcess(KEY, 10),)
    duties.done(KEY)
    late = order(SignalAttempt(KEY, 10), refusal=CommandRefusal.TOO_OLD)
    assert duties.order(late) == (CarriedOut(RECEIPT),)
    assert duties.order(order(SignalAttempt(RankKey(JobId(9), 1, 0), 10))) == (CarriedOut(RECEIPT),)


def test_a_rank_of_a_gang_is_prepared_and_then_started() -> None:
    duties = Duties()
    assert duties.order(order(PrepareAttempt(LAUNCH))) == (CheckNode(LAUNCH, is_prepare=True),)
    assert duties.inventory[KEY] == Checking(KEY)
    assert duties.checked(KEY, None, 61500) == (Hold(PREPARED), Tell(PREPARED), CarriedOut(RECEIPT))
    assert duties.inventory[KEY] == PREPARED
    assert duties.order(order(START)) == (LetGo(KEY), SpawnAttempt(LAUNCH, Master("10.0.0.1", 61500), 0))
    duties.spawned(KEY, RUNNING, was_known=False)
    assert duties.inventory[KEY] == RUNNING


def test_a_rank_is_started_once_however_often_it_is_told_to_start() -> None:
    duties = prepared()
    duties.order(order(START, 1))
    assert duties.order(order(START, 2)) == ()
    assert duties.spawned(KEY, RUNNING, was_known=False) == (
        Follow(RUNNING, is_new=True),
        Tell(StartReport(RUNNING)),
        CarriedOut((1, 1)),
        Tell(StartReport(RUNNING)),
        CarriedOut((1, 2)),
    )
    assert duties.order(order(START)) == (Tell(StartReport(RUNNING)), CarriedOut(RECEIPT))
    assert duties.order(order(PrepareAttempt(LAUNCH))) == (Tell(StartReport(RUNNING)), CarriedOut(RECEIPT))


def test_a_prepared_rank_is_dropped_when_its_gang_does_not_come_and_nothing_else_is() -> None:
    duties = prepared()
    first = duties.inventory[KEY]
    again = order(PrepareAttempt(LAUNCH))
    assert duties.order(again) == (Hold(PREPARED), Tell(PREPARED), CarriedOut(RECEIPT))
    second = duties.inventory[KEY]
    assert isinstance(first, Prepared) and isinstance(second, Prepared)
    assert duties.held_too_long(first, PREPARED_US_MAX) == (), "it was asked for again, and its time began anew"
    assert duties.held_too_long(second, PREPARED_US_MAX) == (LetGo(KEY),)
    assert duties.inventory[KEY] is None
    told, _ = duties.order(order(START))
    assert refusal_in(told) == "NOT_PREPARED"


def test_a_prepared_rank_is_kept_as_long_as_its_scheduler_is_heard() -> None:
    duties = prepared()
    held = duties.inventory[KEY]
    assert isinstance(held, Prepared)
    duties.heartbeat_heard(5_000_000)
    assert duties.held_too_long(held, PREPARED_US_MAX + 4_999_999) == (Hold(held),), "others may take longer"
    assert duties.inventory[KEY] is held
    assert duties.held_too_long(held, PREPARED_US_MAX + 5_000_000) == (LetGo(KEY),)


def test_a_rank_that_was_started_outlives_the_time_of_its_prepare() -> None:
    duties = prepared()
    held = duties.inventory[KEY]
    assert isinstance(held, Prepared)
    duties.order(order(START))
    assert duties.held_too_long(held, PREPARED_US_MAX) == ()
    duties.spawned(KEY, RUNNING, was_known=False)
    assert duties.held_too_long(held, PREPARED_US_MAX) == ()
    assert duties.inventory[KEY] == RUNNING


def test_an_old_prepare_of_what_is_prepared_is_answered_and_does_not_prolong_it() -> None:
    duties = prepared()
    late = order(PrepareAttempt(LAUNCH), refusal=CommandRefusal.TOO_OLD)
    assert duties.order(late) == (Tell(PREPARED), CarriedOut(RECEIPT))


def test_an_aborted_rank_is_told_and_not_started_any_more() -> None:
    duties = prepared()
    let_go, told, done = duties.order(order(AbortAttempt(KEY)))
    assert (let_go, refusal_in(told), done) == (LetGo(KEY), "ABORTED", CarriedOut(RECEIPT))
    for late in (START, PrepareAttempt(LAUNCH), AbortAttempt(KEY)):
        assert duties.order(order(late)) == (told, CarriedOut(RECEIPT))
    duties.order(order(JudgeAttempt(KEY, Verdict.FORGET)))
    assert tuple(duties.inventory) == ()


def test_an_abort_that_comes_while_a_rank_is_checked_waits_for_it() -> None:
    duties = Duties()
    duties.order(order(PrepareAttempt(LAUNCH), 1))
    assert duties.order(order(AbortAttempt(KEY), 2)) == ()
    *_, told, _ = duties.checked(KEY, None, 61500)
    assert refusal_in(told) == "ABORTED"


def test_an_abort_of_a_rank_that_never_came_makes_its_prepare_void() -> None:
    duties = Duties()
    told, _ = duties.order(order(AbortAttempt(KEY)))
    assert duties.order(order(PrepareAttempt(LAUNCH))) == (told, CarriedOut(RECEIPT))


def test_an_abort_of_a_refused_rank_leaves_the_reason_as_it_is() -> None:
    duties = Duties()
    duties.order(order(PrepareAttempt(LAUNCH)))
    told, _ = duties.checked(KEY, Misfit(Unfit.DEVICE_BUSY, "somebody is there", ("GPU-a",)))
    assert duties.order(order(AbortAttempt(KEY))) == (told, CarriedOut(RECEIPT))


def test_an_abort_of_a_rank_that_runs_stops_it_by_the_grace_rule() -> None:
    duties = running()
    assert duties.order(order(AbortAttempt(KEY))) == (StopProcess(KEY, StopCause.GANG, None),)


def test_a_prepared_rank_that_is_killed_is_told_and_one_that_is_forgotten_or_stopped_is_let_go() -> None:
    let_go, told, _ = prepared().order(order(JudgeAttempt(KEY, Verdict.KILL)))
    assert (let_go, refusal_in(told)) == (LetGo(KEY), "ABORTED")
    duties = prepared()
    assert duties.order(order(JudgeAttempt(KEY, Verdict.KEEP))) == (CarriedOut(RECEIPT),)
    assert duties.order(order(JudgeAttempt(KEY, Verdict.FORGET))) == (LetGo(KEY), CarriedOut(RECEIPT))
    assert tuple(duties.inventory) == ()
    let_go, told, _ = prepared().order(order(StopAttempt(KEY, StopCause.CANCELLED, None)))
    assert (let_go, refusal_in(told)) == (LetGo(KEY), "STOPPED_BEFORE_START")


@pytest.mark.parametrize("command", [PrepareAttempt(LAUNCH), StartAttempt(KEY, "10.0.0.1", 61500)])
def test_what_begins_a_rank_on_old_knowledge_is_refused(command: AttemptCommand) -> None:
    duties = Duties() if isinstance(command, PrepareAttempt) else prepared()
    *_, told, _ = duties.order(order(command, refusal=CommandRefusal.TOO_OLD))
    assert refusal_in(told) == "COMMAND_TOO_OLD"


def test_a_prepare_of_what_ran_and_was_forgotten_tells_its_end_and_holds_nothing() -> None:
    duties = Duties()
    duties.order(order(PrepareAttempt(LAUNCH)))
    buried = replace(ENDED, phase=AttemptPhase.FORGOTTEN)
    assert duties.checked(KEY, buried) == (Tell(StartReport(buried)), Tell(EndReport(buried)), CarriedOut(RECEIPT))
    assert tuple(duties.inventory) == ()


def test_a_prepare_whose_command_cannot_be_run_is_refused_with_what_would_have_been_its_end() -> None:
    duties = Duties()
    duties.order(order(PrepareAttempt(LAUNCH)))
    told, _ = duties.checked(KEY, NotRun(LaunchFailure.COMMAND_NOT_FOUND, "true: not found"))
    assert told == Tell(Refused(KEY, "COMMAND_NOT_FOUND", "true: not found"))


def test_a_full_spool_is_told_and_so_is_its_end() -> None:
    duties = running()
    full = replace(RUNNING, full=FullReason.BOUND)
    assert [type(a).__name__ for a in duties.changed(KEY, FullReason.BOUND)] == ["Follow", "Tell"]
    assert duties.inventory[KEY] == full
    assert [type(a).__name__ for a in duties.changed(KEY, None)] == ["Follow", "Tell"]
    assert [type(a).__name__ for a in duties.changed(KEY, Offsets(3, 0))] == ["Follow"]


# --- any orders in any order

COMMANDS = st.sampled_from(
    [
        LAUNCH,
        PrepareAttempt(LAUNCH),
        StartAttempt(KEY, "10.0.0.1", 1),
        AbortAttempt(KEY),
        StopAttempt(KEY, StopCause.CANCELLED, None),
        SignalAttempt(KEY, 10),
        SetTimeLimit(KEY, 60_000_000),
        JudgeAttempt(KEY, Verdict.KEEP),
        JudgeAttempt(KEY, Verdict.KILL),
        JudgeAttempt(KEY, Verdict.FORGET),
    ]
)


class World:
    """A keeper that answers when the test says so."""

    def __init__(self) -> None:
        self.duties = Duties()
        self.outstanding: list[Action] = []
        self.carried_out: list[tuple[int, int]] = []
        self.told: list[object] = []
        self.held: dict[RankKey, Prepared | InBacklog] = {}
        self.view: AttemptView | None = None

    def take(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, CarriedOut):
                self.carried_out.append(action.receipt)
            elif isinstance(action, Tell):
                self.told.append(action.report)
            elif isinstance(action, Hold):
                self.held[action.held.key] = action.held
            elif isinstance(action, LetGo):
                del self.held[action.key]
            elif not isinstance(action, Follow):
                self.outstanding.append(action)
        assert len(self.outstanding) <= 1, "one thing at a time for each attempt"

    def answer(self, *, is_fit: bool) -> None:
        if not self.outstanding:
            return
        match self.outstanding.pop():
            case CheckNode():
                self.take(self.duties.checked(KEY, None if is_fit else Misfit(Unfit.DEVICE_BUSY, "busy", ()), 1))
            case SpawnAttempt():
                known = self.view is not None
                if self.view is None:
                    self.view = RUNNING
                self.take(self.duties.spawned(KEY, self.view, was_known=known))
            case StopProcess():
                self.take(self.duties.done(KEY))
                self.end()
            case LimitProcess(time_limit_us=limit_us):
                if self.view is not None and self.view.end is None:
                    self.view = replace(self.view, time_limit_us=limit_us)
                self.take(self.duties.done(KEY))
            case SignalProcess():
                self.take(self.duties.done(KEY))
            case ForgetAttempt():
                assert self.view is not None and self.view.end is not None, "nothing live is forgotten"
                self.view = replace(self.view, phase=AttemptPhase.FORGOTTEN)
                self.take(self.duties.done(KEY))

    def end(self) -> None:
        if self.view is not None and self.view.end is None:
            self.view = ENDED
            self.take(self.duties.changed(KEY, END))


@given(st.lists(st.one_of(COMMANDS, st.sampled_from(["fit", "unfit", "end", "too long"])), max_size=40))
def test_whatever_comes_the_inventory_is_the_keepers_truth_and_every_order_is_answered_once(
    steps: list[AttemptCommand | str],
) -> None:
    world = World()
    count = 0
    for step in steps:
        match step:
            case "fit" | "unfit":
                world.answer(is_fit=step == "fit")
            case "end":
                world.end()
            case "too long":
                for held in tuple(world.held.values()):
                    world.take(world.duties.held_too_long(held, PREPARED_US_MAX))
            case str():
                raise AssertionError(step)
            case _:
                count += 1
                world.take(world.duties.order(order(step, count)))
    while world.outstanding:
        world.answer(is_fit=True)
    entry = world.duties.inventory[KEY]
    if world.view is not None and world.view.phase is not AttemptPhase.FORGOTTEN:
        assert entry == world.view
    else:
        assert not isinstance(entry, AttemptView)
    assert world.held == ({KEY: entry} if isinstance(entry, Prepared) else {})
    if world.view is not None:
        assert StartReport(RUNNING) in world.told
        assert world.view.end is None or EndReport(ENDED) in world.told
    assert sorted(world.carried_out) == [(1, number) for number in range(1, count + 1)]


def test_lost_output_is_told_with_the_end_also_when_that_was_told_before() -> None:
    duties = running()
    assert duties.output_lost(KEY, Stream.STDERR, 0) == (), "nothing was ever there"
    assert duties.output_lost(KEY, Stream.STDOUT, 3) == (), "it is told with the end"
    cut = replace(END, output_ends=Offsets(3, 0), streams_lost=(Stream.STDOUT,))
    told = duties.changed(KEY, END)[-1]
    assert isinstance(told, Tell) and isinstance(told.report, EndReport)
    assert told.report.view.end == cut
    less = replace(cut, output_ends=Offsets(2, 0))
    (again,) = duties.output_lost(KEY, Stream.STDOUT, 2)
    assert isinstance(again, Tell) and isinstance(again.report, EndReport)
    assert again.report.view.end == less
    assert duties.output_lost(KEY, Stream.STDOUT, 2) == ()


def test_another_time_limit_goes_to_the_keeper_and_into_the_inventory_once_it_was_taken() -> None:
    duties = Duties()
    duties.adopt([RUNNING])
    limited = LimitProcess(KEY, 60_000_000)
    too_old = order(SetTimeLimit(KEY, 60_000_000), refusal=CommandRefusal.TOO_OLD)
    assert duties.order(too_old) == (limited,), "right at any age: what came later comes behind it"
    assert duties.done(KEY, is_done=False) == (CarriedOut(RECEIPT),)
    assert duties.inventory[KEY] == RUNNING, "a keeper that refuses it keeps what it had, and the inventory says so"
    assert duties.order(order(SetTimeLimit(KEY, 60_000_000))) == (limited,)
    duties.done(KEY)
    assert duties.inventory[KEY] == replace(RUNNING, time_limit_us=60_000_000)
    assert duties.order(order(SetTimeLimit(RankKey(JobId(9), 1, 0), None))) == (CarriedOut(RECEIPT),)


def test_a_rank_that_is_prepared_begins_with_its_newest_time_limit() -> None:
    duties = prepared()
    hold, done = duties.order(order(SetTimeLimit(KEY, 60_000_000)))
    assert isinstance(hold, Hold) and hold.held.launch.process.limits.time_limit_us == 60_000_000
    assert done == CarriedOut(RECEIPT)
    _, spawn = duties.order(order(StartAttempt(KEY, "n1", 29_500)))
    assert isinstance(spawn, SpawnAttempt) and spawn.command.process.limits.time_limit_us == 60_000_000
