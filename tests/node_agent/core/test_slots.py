"""What the agent does about launches that wait in a slot behind others: one in, exact actions out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.runs import Cause, ExitCode, JobId, NodeCause, RankKey, StopCause
from node_agent.core.actions import (
    Action,
    BeginNext,
    CarriedOut,
    CheckNode,
    Follow,
    ForgetAttempt,
    Hold,
    LetGo,
    LimitProcess,
    Order,
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
    SetTimeLimit,
    SignalAttempt,
    StopAttempt,
    TakeBack,
)
from node_agent.core.duties import PREPARED_US_MAX, Duties
from node_agent.core.expectations import Expectations, Misfit, Unfit
from node_agent.core.fence import CommandRefusal
from node_agent.core.inventory import Checking, EndReport, InBacklog, Refused, StartReport
from node_agent.core.launch import Process, Refusal, RefusalReason
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, LossReason, Offsets
from node_agent.core.slots import Slots, hands_on, noted_slot, slot_in

RECEIPT = (1, 5)
END = AttemptEnd(status=ExitCode(code=0), output_ends=Offsets(), started_us=1_000, ended_us=2_000)
BUSY = Misfit(Unfit.DEVICE_BUSY, "somebody is there", ("GPU-a",))


def key_of(number: int) -> RankKey:
    return RankKey(JobId(number), 1, 0, "0123456789abcdef")


A, B, C, D = map(key_of, (1, 2, 3, 4))


def launch(key: RankKey, slot: RankKey | None = A) -> LaunchAttempt:
    return LaunchAttempt(
        key=key,
        process=Process(argv=("true",), env={}, cwd="/"),
        expectations=Expectations(device_uuids=("GPU-a",)),
        slot=None if slot == key else slot,
    )


def order(command: AttemptCommand, **fields: object) -> Order:
    return Order(command=command, receipt=RECEIPT, **fields)  # type: ignore[arg-type]


def view_of(key: RankKey, slot: RankKey | None = A) -> AttemptView:
    note = "uuids=GPU-a sampling_us= origin=o" + noted_slot(None if slot == key else slot)
    return AttemptView(
        key=key,
        phase=AttemptPhase.RUNNING,
        keeper_id="k",
        directory=f"/{key}",
        pid=42,
        started_us=1_000,
        note=note,
    )


def ended(view: AttemptView, end: AttemptEnd = END) -> AttemptView:
    return replace(view, phase=AttemptPhase.ENDED, end=end, output_ends=end.output_ends)


def with_backlog(*behind: RankKey) -> Duties:
    """An agent on which A runs, and these wait behind it."""
    duties = Duties()
    duties.order(order(launch(A)))
    duties.checked(A, None)
    duties.spawned(A, view_of(A), was_known=False)
    for key in behind:
        hold, done = duties.order(order(launch(key), heartbeat_sent_us=900))
        assert (hold, done) == (Hold(InBacklog(launch(key), 900)), CarriedOut(RECEIPT))
    return duties


def refusals_in(actions: tuple[Action, ...]) -> dict[RankKey, str]:
    """What the scheduler is told of launches that do not begin."""
    told = (action.report for action in actions if isinstance(action, Tell))
    return {report.key: report.reason for report in told if isinstance(report, Refused)}


def next_in(actions: tuple[Action, ...]) -> list[RankKey]:
    """Whose turn it is."""
    return [action.launch.key for action in actions if isinstance(action, BeginNext)]


# --- waiting and beginning


def test_a_launch_waits_while_the_one_before_is_checked_spawned_and_runs() -> None:
    duties = Duties()
    duties.order(order(launch(A)))
    for number, key in enumerate((B, C, D)):
        assert duties.order(order(launch(key))) == (Hold(InBacklog(launch(key), 0)), CarriedOut(RECEIPT))
        if number == 0:
            duties.checked(A, None)
        if number == 1:
            duties.spawned(A, view_of(A), was_known=False)
    assert [type(duties.inventory[key]) for key in (A, B, C, D)] == [AttemptView, InBacklog, InBacklog, InBacklog]


def test_the_next_begins_when_the_one_before_has_ended_and_that_is_told_first() -> None:
    duties = with_backlog(B, C)
    actions = duties.changed(A, END)
    now = ended(view_of(A))
    assert actions == (Follow(now, is_new=False), Tell(EndReport(now)), BeginNext(launch(B), 900))
    assert duties.next_begun(B, None) == (LetGo(B), CheckNode(launch(B), is_prepare=False))
    assert duties.inventory[B] == Checking(B)
    assert duties.checked(B, None) == (SpawnAttempt(launch(B), None, 900),)
    assert duties.spawned(B, view_of(B), was_known=False) == (
        Follow(view_of(B), is_new=True),
        Tell(StartReport(view_of(B))),
    )
    assert isinstance(duties.inventory[C], InBacklog)
    assert next_in(duties.changed(B, END)) == [C]


def test_what_is_found_to_have_ended_in_the_answer_to_its_launch_lets_the_next_begin() -> None:
    duties = Duties()
    duties.order(order(launch(A)))
    duties.order(order(launch(B)))
    duties.checked(A, None)
    assert duties.changed(A, END) == (), "it overtook the answer to its launch"
    assert next_in(duties.spawned(A, view_of(A), was_known=False)) == [B]
    duties = Duties()
    duties.order(order(launch(A)))
    duties.order(order(launch(B)))
    assert next_in(duties.checked(A, ended(view_of(A)))) == [B], "it was launched before"
    duties = Duties()
    duties.order(order(launch(A)))
    duties.order(order(launch(B)))
    buried = replace(ended(view_of(A)), phase=AttemptPhase.FORGOTTEN)
    assert next_in(duties.checked(A, buried)) == [B], "it was launched, and forgotten"


def test_what_comes_into_an_empty_slot_begins_at_once_also_when_its_first_is_long_over() -> None:
    duties = Duties()
    assert duties.order(order(launch(B))) == (CheckNode(launch(B), is_prepare=False),)
    duties = with_backlog()
    duties.changed(A, END)
    assert duties.order(order(launch(B))) == (CheckNode(launch(B), is_prepare=False),)
    assert duties.order(order(launch(C))) == (Hold(InBacklog(launch(C), 0)), CarriedOut(RECEIPT))


def test_the_first_of_a_slot_waits_if_another_one_came_before_it() -> None:
    """An agent that was started anew is told all launches again, in whatever order."""
    duties = Duties()
    duties.order(order(launch(B)))
    assert duties.order(order(launch(A))) == (Hold(InBacklog(launch(A), 0)), CarriedOut(RECEIPT))


def test_slots_do_not_wait_for_each_other() -> None:
    duties = with_backlog(B)
    assert duties.order(order(launch(C, slot=C))) == (CheckNode(launch(C, slot=C), is_prepare=False),)
    assert duties.order(order(launch(D, slot=C))) == (Hold(InBacklog(launch(D, slot=C), 0)), CarriedOut(RECEIPT))
    duties.checked(C, None)
    duties.spawned(C, view_of(C, slot=C), was_known=False)
    assert next_in(duties.changed(C, END)) == [D]
    assert isinstance(duties.inventory[B], InBacklog)


def test_a_second_launch_of_what_waits_does_nothing_and_keeps_its_place() -> None:
    duties = with_backlog(B, C)
    assert duties.order(order(launch(B))) == (CarriedOut(RECEIPT),)
    assert duties.order(order(launch(B), refusal=CommandRefusal.TOO_OLD)) == (CarriedOut(RECEIPT),)
    assert next_in(duties.changed(A, END)) == [B]
    duties.next_begun(B, None)
    assert duties.order(order(launch(C))) == (CarriedOut(RECEIPT),)
    assert duties.next_begun(B, None) == (), "it begins once"


def test_what_begins_rests_on_the_newest_message_that_the_scheduler_had() -> None:
    duties = with_backlog(B)
    duties.heartbeat_heard(1_500)
    assert BeginNext(launch(B), 1_500) in duties.changed(A, END)
    duties.next_begun(B, None)
    assert duties.checked(B, None) == (SpawnAttempt(launch(B), None, 1_500),)


@pytest.mark.parametrize("refusal", [CommandRefusal.TOO_OLD, CommandRefusal.UNKNOWN_HEARTBEAT])
def test_what_rests_on_old_knowledge_by_then_is_refused_and_the_next_is_asked_for(refusal: CommandRefusal) -> None:
    duties = with_backlog(B, C)
    duties.changed(A, END)
    actions = duties.next_begun(B, refusal)
    assert (actions[0], refusals_in(actions), next_in(actions)) == (LetGo(B), {B: "COMMAND_TOO_OLD"}, [C])
    actions = duties.next_begun(C, refusal)
    assert (refusals_in(actions), next_in(actions)) == ({C: "COMMAND_TOO_OLD"}, [])
    assert duties.order(order(launch(D))) == (CheckNode(launch(D), is_prepare=False),)


def test_a_refusal_of_the_one_before_lets_the_next_begin() -> None:
    duties = Duties()
    duties.order(order(launch(A)))
    duties.order(order(launch(B)))
    duties.order(order(launch(C)))
    actions = duties.checked(A, BUSY)
    assert (refusals_in(actions), next_in(actions)) == ({A: "DEVICE_BUSY"}, [B])
    duties.next_begun(B, None)
    duties.checked(B, None)
    actions = duties.spawned(B, Refusal(RefusalReason.CWD_MISSING, "no folder"), was_known=False)
    assert (refusals_in(actions), next_in(actions)) == ({B: "CWD_MISSING"}, [C])


# --- what comes for one that waits


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (StopAttempt(B, StopCause.CANCELLED, None), "STOPPED_BEFORE_START"),
        (TakeBack(B), "TAKEN_BACK"),
        (JudgeAttempt(B, Verdict.KILL), "STOPPED_BEFORE_START"),
        (AbortAttempt(B), "ABORTED"),
    ],
)
def test_what_ends_one_that_waits_is_told_and_holds_and_those_behind_it_go_on(
    command: AttemptCommand, reason: str
) -> None:
    duties = with_backlog(B, C)
    actions = duties.order(order(command))
    assert (actions[0], refusals_in(actions), actions[-1]) == (LetGo(B), {B: reason}, CarriedOut(RECEIPT))
    assert next_in(actions) == [], "what was before it runs yet"
    assert refusals_in(duties.order(order(launch(B)))) == {B: reason}, "a late launch is void"
    assert next_in(duties.changed(A, END)) == [C]


def test_what_ends_one_as_its_turn_has_come_lets_the_next_begin() -> None:
    duties = with_backlog(B, C)
    assert next_in(duties.changed(A, END)) == [B]
    assert next_in(duties.order(order(TakeBack(B)))) == [C]
    assert duties.next_begun(B, None) == ()


def test_one_that_waits_and_is_forgotten_is_let_go_without_a_word() -> None:
    duties = with_backlog(B, C)
    assert duties.order(order(JudgeAttempt(B, Verdict.KEEP))) == (CarriedOut(RECEIPT),)
    assert duties.order(order(JudgeAttempt(B, Verdict.FORGET))) == (LetGo(B), CarriedOut(RECEIPT))
    assert duties.inventory[B] is None
    assert next_in(duties.changed(A, END)) == [C]


def test_a_signal_to_one_that_waits_goes_nowhere() -> None:
    duties = with_backlog(B)
    assert duties.order(order(SignalAttempt(B, 10))) == (CarriedOut(RECEIPT),)
    assert next_in(duties.changed(A, END)) == [B]


def test_a_time_limit_of_one_that_waits_is_told_and_used_at_its_start() -> None:
    duties = with_backlog(B, C)
    assert duties.order(order(SetTimeLimit(B, 60_000_000))) == (CarriedOut(RECEIPT),)
    waits = duties.inventory[B]
    assert isinstance(waits, InBacklog)
    assert waits.launch.process.limits.time_limit_us == 60_000_000
    assert next_in(duties.changed(A, END)) == [B], "it kept its place"
    duties.next_begun(B, None)
    assert duties.inventory[B] == Checking(B, 60_000_000)
    (spawn,) = duties.checked(B, None)
    assert isinstance(spawn, SpawnAttempt) and spawn.command.process.limits.time_limit_us == 60_000_000


def test_a_launch_that_was_asked_back_before_it_came_is_void_until_that_is_forgotten() -> None:
    duties = with_backlog()
    actions = duties.order(order(TakeBack(B)))
    assert refusals_in(actions) == {B: "TAKEN_BACK"}
    assert refusals_in(duties.order(order(launch(B)))) == {B: "TAKEN_BACK"}
    duties.order(order(JudgeAttempt(B, Verdict.FORGET)))
    assert tuple(duties.inventory) == (view_of(A),)
    duties.order(order(launch(C)))
    assert next_in(duties.changed(A, END)) == [C], "it took no place"


def test_what_runs_or_has_ended_is_not_handed_back() -> None:
    duties = with_backlog(B)
    assert duties.order(order(TakeBack(A))) == (Tell(StartReport(view_of(A))), CarriedOut(RECEIPT))
    assert duties.inventory[A] == view_of(A)
    duties.changed(A, END)
    told = duties.order(order(TakeBack(A)))
    assert told == (Tell(StartReport(ended(view_of(A)))), Tell(EndReport(ended(view_of(A)))), CarriedOut(RECEIPT))


def test_what_is_checked_or_spawned_when_it_is_asked_back_runs() -> None:
    duties = with_backlog(B)
    duties.changed(A, END)
    duties.next_begun(B, None)
    assert duties.order(order(TakeBack(B))) == ()
    duties.checked(B, None)
    assert duties.spawned(B, view_of(B), was_known=False) == (
        Follow(view_of(B), is_new=True),
        Tell(StartReport(view_of(B))),
        Tell(StartReport(view_of(B))),
        CarriedOut(RECEIPT),
    )


def test_one_that_waits_for_too_long_is_handed_back_unless_its_turn_has_come() -> None:
    duties = with_backlog(B, C)
    first, second = duties.inventory[B], duties.inventory[C]
    assert isinstance(first, InBacklog) and isinstance(second, InBacklog)
    duties.order(order(SetTimeLimit(B, 60_000_000)))  # its time goes on
    actions = duties.held_too_long(first, PREPARED_US_MAX)
    assert (actions[0], refusals_in(actions), next_in(actions)) == (LetGo(B), {B: "TAKEN_BACK"}, [])
    assert duties.held_too_long(first, PREPARED_US_MAX) == ()
    assert next_in(duties.changed(A, END)) == [C]
    duties.next_begun(C, None)
    assert duties.held_too_long(second, PREPARED_US_MAX) == ()


# --- ends after which nothing of the slot begins


@pytest.mark.parametrize(
    "end",
    [
        *(
            replace(END, stop_cause=cause)
            for cause in StopCause
            if cause not in (StopCause.CANCELLED, StopCause.TIME_LIMIT)
        ),
        replace(END, stop_cause=NodeCause.SHUTDOWN),
        replace(END, status=None, loss=LossReason.KEEPER_DIED),
        replace(END, processes_left=1),
        replace(END, stop_cause=StopCause.CANCELLED, processes_left=1),
    ],
    ids=lambda end: str(end.stop_cause or end.loss or "left"),
)
def test_after_an_end_that_was_to_make_room_all_that_waits_is_handed_back(end: AttemptEnd) -> None:
    assert not hands_on(end)
    duties = with_backlog(B, C)
    actions = duties.changed(A, end)
    assert (refusals_in(actions), next_in(actions)) == ({B: "TAKEN_BACK", C: "TAKEN_BACK"}, [])
    assert [action for action in actions if isinstance(action, LetGo)] == [LetGo(B), LetGo(C)]
    assert actions.index(Tell(EndReport(ended(view_of(A), end)))) < actions.index(LetGo(B))
    assert refusals_in(duties.order(order(launch(B)))) == {B: "TAKEN_BACK"}


@pytest.mark.parametrize("cause", [None, StopCause.CANCELLED, StopCause.TIME_LIMIT])
def test_after_an_end_that_makes_room_for_nobody_else_the_next_begins(cause: StopCause | None) -> None:
    assert next_in(with_backlog(B).changed(A, replace(END, stop_cause=cause))) == [B]


def test_a_keeper_that_dies_under_a_launch_has_what_waits_behind_it_handed_back() -> None:
    duties = Duties()
    duties.order(order(launch(A)))
    duties.order(order(launch(B)))
    duties.checked(A, None)
    lost = ended(view_of(A), replace(END, status=None, loss=LossReason.KEEPER_DIED))
    assert refusals_in(duties.saw(lost)) == {B: "TAKEN_BACK"}
    assert duties.spawned(A, view_of(A), was_known=False) == (CarriedOut(RECEIPT),)


# --- a new start of the agent


@pytest.mark.parametrize("slot", [A, RankKey(JobId(12_345), 67, 0), RankKey(JobId(9), 2, 3, "fedcba9876543210")])
def test_a_slot_is_read_back_from_the_note_of_a_launch(slot: RankKey) -> None:
    note = f"uuids=GPU-a,GPU-b sampling_us=500 origin=e30{noted_slot(slot)} trace=00-0af7-b7ad-01"
    assert slot_in(note) == slot
    assert slot_in("uuids=GPU-a sampling_us=500 origin=e30" + noted_slot(None)) is None
    assert slot_in("uuids= sampling_us= origin=slot=1.1.0") is None
    assert slot_in("uuids= sampling_us= slot=1.1") is None, "an agent starts whatever stands there"


def test_what_runs_keeps_its_slot_across_a_start_of_the_agent() -> None:
    duties = Duties()
    duties.adopt([ended(view_of(A)), view_of(B)])
    assert duties.order(order(launch(C))) == (Hold(InBacklog(launch(C), 0)), CarriedOut(RECEIPT))
    assert next_in(duties.changed(B, END)) == [C]
    duties = Duties()
    duties.adopt([view_of(A)])
    assert duties.order(order(launch(B))) == (Hold(InBacklog(launch(B), 0)), CarriedOut(RECEIPT))
    duties = Duties()
    duties.adopt([ended(view_of(A))])
    assert duties.order(order(launch(B))) == (CheckNode(launch(B), is_prepare=False),)


def test_two_of_a_slot_that_are_found_alive_are_both_waited_for() -> None:
    """As an agent of a version without slots leaves them."""
    duties = Duties()
    duties.adopt([view_of(A), view_of(B)])
    duties.order(order(launch(C)))
    assert next_in(duties.changed(B, END)) == []
    assert next_in(duties.changed(A, END)) == [C]
    duties = Duties()
    duties.adopt([view_of(A), view_of(B)])
    duties.order(order(launch(C)))
    actions = duties.changed(A, replace(END, stop_cause=StopCause.PREEMPTED))
    assert refusals_in(actions) == {C: "TAKEN_BACK"}
    assert duties.inventory[B] == view_of(B)
    assert duties.order(order(launch(D))) == (Hold(InBacklog(launch(D), 0)), CarriedOut(RECEIPT))


# --- the order alone


def test_a_rank_has_one_place_in_one_slot() -> None:
    slots = Slots()
    for key in (A, B, C):
        slots.enter(A, key)
    slots.enter(D, B)
    assert [slots.is_first(key) for key in (A, B, C)] == [True, False, False]
    assert [slots.behind(key) for key in (A, B, C, D)] == [(B, C), (C,), (), ()]
    assert slots.leave(B) is None
    assert slots.leave(B) is None
    assert slots.leave(A) == C
    assert slots.leave(C) is None
    assert slots == Slots(), "nothing is kept of what has left"


# --- any orders in any order

KEYS = (A, B, C, D)
COMMANDS = st.one_of(
    *(st.builds(make, st.sampled_from(KEYS)) for make in (launch, launch, launch, TakeBack)),
    st.builds(StopAttempt, st.sampled_from(KEYS), st.just(StopCause.CANCELLED), st.none()),
    st.builds(SetTimeLimit, st.sampled_from(KEYS), st.just(60_000_000)),
    st.builds(JudgeAttempt, st.sampled_from(KEYS), st.sampled_from(Verdict)),
)
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["fit", "unfit", "too long"]), st.sampled_from(KEYS)),
    st.tuples(st.sampled_from(["end", "preempted", "left"]), st.sampled_from(KEYS)),
    st.just(("the agent starts anew", A)),
)


@dataclass
class World:
    """A keeper that answers when the test says so, and a scheduler that launches nothing that it gave up."""

    duties: Duties = field(default_factory=Duties)
    outstanding: dict[RankKey, Action] = field(default_factory=dict)
    held: dict[RankKey, InBacklog] = field(default_factory=dict)
    views: dict[RankKey, AttemptView] = field(default_factory=dict)
    launched: set[RankKey] = field(default_factory=set)
    given_up: set[RankKey] = field(default_factory=set)
    refused: set[RankKey] = field(default_factory=set)
    started: set[RankKey] = field(default_factory=set)
    is_too_old: bool = False

    def take(self, actions: tuple[Action, ...]) -> None:
        to_do = list(actions)
        while to_do:
            match to_do.pop(0):
                case Tell(report=Refused(key=key)):
                    self.refused.add(key)
                case Tell(report=StartReport(view=view)):
                    self.started.add(view.key)
                case Hold(held=InBacklog() as held):
                    self.held[held.key] = held
                case LetGo(key=key):
                    del self.held[key]
                case BeginNext(launch=LaunchAttempt(key=key)):
                    refusal = CommandRefusal.TOO_OLD if self.is_too_old else None
                    to_do.extend(self.duties.next_begun(key, refusal))
                case CheckNode(command=command) | SpawnAttempt(command=command) as action:
                    self._begin(command.key, action)
                case StopProcess(key=key) | LimitProcess(key=key) | ForgetAttempt(key=key) as action:
                    self._begin(key, action)
                case _:
                    pass
        self.check()

    def _begin(self, key: RankKey, action: Action) -> None:
        assert key not in self.outstanding, "one thing at a time for each attempt"
        self.outstanding[key] = action

    def check(self) -> None:
        """At no time two of a slot are begun."""
        coming = {key for key, action in self.outstanding.items() if isinstance(action, CheckNode | SpawnAttempt)}
        living = {key for key, view in self.views.items() if view.phase.is_live}
        begun = coming | living
        assert len(begun) <= 1, begun
        waiting = {entry.key for entry in self.duties.inventory if isinstance(entry, InBacklog)}
        assert waiting == set(self.held)
        assert begun or not waiting, "nobody waits for nothing"
        assert not (self.started & self.refused) - self.given_up, "what was forgotten may be refused by a late order"

    def order(self, command: AttemptCommand) -> None:
        if isinstance(command, LaunchAttempt):
            if command.key in self.given_up:
                return
            self.launched.add(command.key)
        if isinstance(command, JudgeAttempt) and command.verdict is not Verdict.KEEP:
            self.given_up.add(command.key)
        self.take(self.duties.order(order(command)))

    def answer(self, key: RankKey, *, is_fit: bool) -> None:
        match self.outstanding.pop(key, None):
            case CheckNode():
                self.take(self.duties.checked(key, None if is_fit else BUSY))
            case SpawnAttempt() if not is_fit and key not in self.views:
                self.take(self.duties.spawned(key, Refusal(RefusalReason.CWD_MISSING, "no"), was_known=False))
            case SpawnAttempt():
                was_known = key in self.views
                view = self.views.setdefault(key, view_of(key))
                self.take(self.duties.spawned(key, view, was_known=was_known))
            case StopProcess(cause=cause):
                self.take(self.duties.done(key))
                self.end(key, cause=cause)
            case LimitProcess():
                self.take(self.duties.done(key))
            case ForgetAttempt():
                self.views[key] = replace(self.views[key], phase=AttemptPhase.FORGOTTEN)
                self.take(self.duties.done(key))

    def end(self, key: RankKey, *, cause: Cause | None = None, left: int = 0) -> None:
        view = self.views.get(key)
        if view is not None and view.phase.is_live:
            end = replace(END, stop_cause=cause, processes_left=left)
            self.views[key] = ended(view, end)
            self.take(self.duties.changed(key, end))

    def start_anew(self) -> None:
        """What was under way is lost with the agent, and the keeper has what it was asked for or not."""
        for key, action in self.outstanding.items():
            if isinstance(action, SpawnAttempt):
                self.views.setdefault(key, view_of(key))
        self.outstanding.clear()
        self.held.clear()
        self.refused.clear()
        self.duties = Duties()
        self.take(self.duties.adopt(self.views.values()))
        self.started |= self.views.keys()  # the inventory says so
        known = {entry.key for entry in self.duties.inventory}
        for key in sorted(self.launched - self.given_up - known, reverse=True):
            self.order(launch(key))


@given(st.lists(st.one_of(COMMANDS, EVENTS, st.booleans()), max_size=60))
def test_whatever_comes_one_of_a_slot_is_begun_at_a_time_and_every_launch_is_begun_or_refused(
    steps: list[AttemptCommand | tuple[str, RankKey] | bool],
) -> None:
    world = World()
    for step in steps:
        match step:
            case bool():
                world.is_too_old = step
            case ("fit" | "unfit" as found, RankKey() as key):
                world.answer(key, is_fit=found == "fit")
            case ("too long", RankKey() as key):
                if key in world.held:
                    world.take(world.duties.held_too_long(world.held[key], PREPARED_US_MAX))
            case ("end", RankKey() as key):
                world.end(key)
            case ("preempted", RankKey() as key):
                world.end(key, cause=StopCause.PREEMPTED)
            case ("left", RankKey() as key):
                world.end(key, left=1)
            case ("the agent starts anew", _):
                world.start_anew()
            case (_, _):
                raise AssertionError(step)
            case _:
                world.order(step)
    for _ in range(4 * len(KEYS)):
        for key in KEYS:
            world.answer(key, is_fit=True)
            world.end(key)
    assert not world.outstanding and not world.held
    for key in world.launched - world.given_up:
        assert (key in world.started) != (key in world.refused), key
    assert world.duties._slots == Slots(), "nothing is kept of what has left"
