"""What the agent does about each command and each change: orders in, actions out. The agent's file to read first.

    order ──▶ (InBacklog ──▶ BeginNext) ──▶ CheckNode ──checked──▶ SpawnAttempt ──spawned──▶ Follow, Tell, CarriedOut
                   └──checked──▶ Hold … Start ─▶ LetGo, SpawnAttempt …       (a rank of a gang)
         ──▶ StopProcess | SignalProcess | LimitProcess | ForgetAttempt ──done──▶ CarriedOut

For each attempt one order is carried out at a time, in the order in which they came. Every order is safe to repeat:
what was done before gets the same answer again, and nothing that was ever launched or refused is launched again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from gpufleet.jobs.runs import RankKey, StopCause

from .actions import (
    Action,
    BeginNext,
    CarriedOut,
    Change,
    CheckNode,
    Follow,
    ForgetAttempt,
    GiveUpFiles,
    Hold,
    LetGo,
    LimitProcess,
    Master,
    Order,
    Outstanding,
    SignalProcess,
    SpawnAttempt,
    StopProcess,
    Tell,
)
from .adoption import Obedience, Verdict, obey
from .commands import (
    AbortAttempt,
    JudgeAttempt,
    LaunchAttempt,
    NotLaunched,
    PrepareAttempt,
    SetTimeLimit,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
    TakeBack,
    reason_of,
)
from .expectations import Misfit
from .fence import CommandRefusal
from .inventory import Checking, Entry, InBacklog, Inventory, Prepared, Refused, reports_of
from .launch import NotRun, Objection, Refusal
from .outcome import AttemptEnd, AttemptPhase, AttemptView, Offsets, Stream
from .slots import Slots, hands_on, slot_in

ORDERS_WAITING_MAX = 1_000
"""Orders that wait for one attempt; a flood of signals beyond it is not carried out."""

PREPARED_US_MAX = 60_000_000
"""A rank that was prepared is dropped when its scheduler was not heard for so long: that counts the node as lost, then.
One that still wants it finds it missing in the inventory, and prepares it again. As long as the scheduler is heard it
knows of the rank, and aborts what it does not want: other ranks of the gang may take long to be prepared."""

BACKLOG_US_MAX = 5_000_000
"""A rank of the backlog is handed back after this: what is before it in its slot runs for longer than was expected."""


@dataclass(slots=True)
class Duties:
    """The agent's state about attempts. Each method answers what to do now."""

    inventory: Inventory = field(default_factory=Inventory)
    fence_base_us: int = 0
    _under_way: dict[RankKey, tuple[Order, Outstanding]] = field(default_factory=dict)
    _waiting: dict[RankKey, deque[Order]] = field(default_factory=dict)
    _early: dict[RankKey, list[Change]] = field(default_factory=dict)
    _to_forget: set[RankKey] = field(default_factory=set)
    _slots: Slots = field(default_factory=Slots)

    # --- what comes in

    def adopt(self, views: Iterable[AttemptView]) -> tuple[Action, ...]:
        """Take over what the keepers hold; the next inventory reports all of it."""
        known = [view for view in views if view.phase is not AttemptPhase.FORGOTTEN]
        self.inventory.adopt(known)
        for view in known:
            if view.phase.is_live:
                self._slots.enter(slot_in(view.note) or view.key, view.key)
        return tuple(Follow(view, is_new=False) for view in known)

    def heartbeat_heard(self, sent_us: int) -> bool:
        """The scheduler had a message sent at this time; says whether every fence moves."""
        moves = sent_us > self.fence_base_us
        self.fence_base_us = max(self.fence_base_us, sent_us)
        return moves

    def order(self, order: Order) -> tuple[Action, ...]:
        """Begin to carry out an order, or let it wait for those before it."""
        key = order.command.key
        if key not in self._under_way:
            return tuple(self._begin(order))
        waiting = self._waiting.setdefault(key, deque())
        if len(waiting) >= ORDERS_WAITING_MAX:
            return tuple(_carried_out(order))
        waiting.append(order)
        under_way = self._under_way[key][1]
        is_fetching = isinstance(under_way, CheckNode) and under_way.command.is_prepared_for
        return (GiveUpFiles(key),) if is_fetching and _ends(order) else ()

    def checked(self, key: RankKey, found: Misfit | Objection | None, port: int = 0) -> tuple[Action, ...]:
        """The node was checked, or could not be; `found` is what speaks against the launch.

        `port` is a free one for rank 0 of a gang.
        """
        order, _ = self._under_way[key]
        match found:
            case AttemptView():
                return self.spawned(key, found, was_known=True)
            case Refusal():
                return (*self._refuse(key, reason_of(found), found.detail), *self._finish(key))
            case NotRun():
                return (*self._refuse(key, found.failure, found.detail), *self._finish(key))
            case Misfit():
                return (*self._refuse(key, found.reason, found.sentence), *self._finish(key))
        match order.command:
            case LaunchAttempt():
                spawn = self._spawn(order.command, None, order)
                self._under_way[key] = (order, spawn)
                return (spawn,)
            case PrepareAttempt():
                return (*self._hold(Prepared(order.command.launch, port)), *self._finish(key))
            case _:
                raise AssertionError(f"{order.command} needs no check")

    def given_up(self, key: RankKey) -> tuple[Action, ...]:
        """What ends the rank came while its files were fetched: it is not started, and what waits goes on."""
        sentence = "it was stopped before it was started"
        return (*self._refuse(key, NotLaunched.STOPPED_BEFORE_START, sentence), *self._finish(key))

    def spawned(self, key: RankKey, answer: AttemptView | Refusal, *, was_known: bool) -> tuple[Action, ...]:
        """The keeper answered a launch; `was_known`: nothing was started now."""
        early = self._early.pop(key, [])
        if isinstance(self.inventory[key], AttemptView):
            return tuple(self._finish(key))  # its keeper has died meanwhile, and its end is known
        self.inventory.drop(key)
        if isinstance(answer, Refusal):
            return (*self._refuse(key, reason_of(answer), answer.detail), *self._finish(key))
        if answer.phase is AttemptPhase.FORGOTTEN:
            # The scheduler had stored its end and forgot that: it is told once more, and there is nothing to keep.
            return (*_told_again(answer), *self._leave(key), *self._finish(key))
        actions: list[Action] = [Follow(answer, is_new=not was_known), *map(Tell, self.inventory.see(answer))]
        actions += self._leave_if_ended(answer)
        for change in early:
            actions += self.changed(key, change)
        return (*actions, *self._finish(key))

    def held_too_long(self, held: Prepared | InBacklog, now_us: int) -> tuple[Action, ...]:
        """The time of a rank that is held is over; nothing happens if it was started, given up or renewed meanwhile.

        One in the backlog keeps its time, whatever becomes of its limits. One that is prepared has its time again if
        the scheduler was heard in it.
        """
        entry = self.inventory[held.key]
        if isinstance(entry, InBacklog):
            return tuple(self._hand_back(held.key, "what is before it in its slot runs for longer than was expected"))
        if entry is not held:
            return ()
        if now_us - self.fence_base_us < PREPARED_US_MAX:
            return (Hold(held),)
        self.inventory.drop(held.key)
        return (LetGo(held.key),)

    def next_begun(self, key: RankKey, refusal: CommandRefusal | None) -> tuple[Action, ...]:
        """The next rank of a slot may begin, or what it rests on is too old by now."""
        entry = self.inventory[key]
        if not isinstance(entry, InBacklog):
            return ()
        self.inventory.drop(key)
        return (LetGo(key), *self.order(Order(command=entry.launch, heartbeat_sent_us=entry.sent_us, refusal=refusal)))

    def done(self, key: RankKey, *, is_done: bool = True) -> tuple[Action, ...]:
        """What was asked of the keeper was done, or could not be."""
        match self._under_way[key][1]:
            case ForgetAttempt() if is_done:
                self.inventory.drop(key)
            case LimitProcess(time_limit_us=limit_us) if is_done:
                self.inventory.limit(key, limit_us)
        return tuple(self._finish(key))

    def changed(self, key: RankKey, change: Change) -> tuple[Action, ...]:
        """A keeper says what became of an attempt."""
        view = self.inventory[key]
        if view is None:
            return ()
        if not isinstance(view, AttemptView):
            # It overtook the answer to its own launch.
            self._early.setdefault(key, []).append(change)
            return ()
        match change:
            case AttemptEnd():
                ends = change.output_ends
                view = replace(
                    view, phase=AttemptPhase.ENDED, end=change, output_ends=ends, full=None, time_limit_us=None
                )
            case Offsets():
                view = view if view.end is not None else replace(view, output_ends=change)
            case _:
                view = replace(view, full=change)
        return self.saw(view)

    def output_lost(self, key: RankKey, stream: Stream, offset: int) -> tuple[Action, ...]:
        """The scheduler's store lost what it had of a stream behind this offset, and so has this node."""
        return tuple(map(Tell, self.inventory.output_lost(key, stream, offset)))

    def saw(self, view: AttemptView) -> tuple[Action, ...]:
        """The newest view of an attempt, whole."""
        actions: list[Action] = [Follow(view, is_new=False), *map(Tell, self.inventory.see(view))]
        actions += self._leave_if_ended(view)
        if view.end is not None and view.key in self._to_forget:
            self._to_forget.discard(view.key)
            actions += self.order(Order(command=JudgeAttempt(view.key, Verdict.FORGET)))
        return tuple(actions)

    # --- orders

    def _begin(self, order: Order) -> list[Action]:
        key = order.command.key
        actions = self._actions_of(order, self.inventory[key])
        for action in actions:
            if isinstance(action, Outstanding):
                self._under_way[key] = (order, action)
                return actions
        return [*actions, *_carried_out(order)]

    def _finish(self, key: RankKey) -> list[Action]:
        actions = _carried_out(self._under_way.pop(key)[0])
        waiting = self._waiting.get(key)
        while waiting and key not in self._under_way:
            actions += self._begin(waiting.popleft())
        if not waiting:
            self._waiting.pop(key, None)
        return actions

    def _actions_of(self, order: Order, entry: Entry | None) -> list[Action]:
        match order.command:
            case LaunchAttempt() as launch:
                return self._to_check(order, launch, entry, is_prepare=False)
            case PrepareAttempt(launch=launch):
                return self._to_check(order, launch, entry, is_prepare=True)
            case StartAttempt() as start:
                return self._to_start(order, start, entry)
            case AbortAttempt(key=key):
                return self._to_abort(key, entry)
            case TakeBack(key=key):
                return self._to_take_back(key, entry)
            case StopAttempt() as stop:
                return self._to_stop(stop, entry)
            case SignalAttempt(key=key, signal=number):
                runs = isinstance(entry, AttemptView) and entry.phase.is_live
                return [SignalProcess(key, number)] if runs and order.refusal is None else []
            case SetTimeLimit(key=key, time_limit_us=limit_us):
                return self._to_limit(key, limit_us, entry)
            case JudgeAttempt(key=key, verdict=verdict):
                return self._to_obey(key, verdict, entry)
            case _:
                assert_never(order.command)

    def _to_check(self, order: Order, launch: LaunchAttempt, entry: Entry | None, *, is_prepare: bool) -> list[Action]:
        if isinstance(entry, Prepared) and is_prepare and order.refusal is None:
            # Asked again it is the same; its time limit alone may be another by now.
            return self._hold(replace(entry, launch=entry.launch.within(launch.process.limits)))
        if entry is not None:
            return _told_again(entry)
        if order.refusal is not None:
            return self._refuse_old(launch.key, order.refusal)
        if not is_prepare:
            self._slots.enter(launch.slot or launch.key, launch.key)
            if not self._slots.is_first(launch.key):
                waits = InBacklog(launch, order.heartbeat_sent_us)
                self.inventory.take(waits)
                return [Hold(waits)]
        self.inventory.take(Checking(launch.key, launch.process.limits.time_limit_us))
        return [CheckNode(launch, is_prepare)]

    def _to_start(self, order: Order, start: StartAttempt, entry: Entry | None) -> list[Action]:
        if entry is None:
            return self._refuse(start.key, NotLaunched.NOT_PREPARED, "the rank was never prepared on this node")
        if not isinstance(entry, Prepared):
            return _told_again(entry)
        if order.refusal is not None:
            return [LetGo(start.key), *self._refuse_old(start.key, order.refusal)]
        self.inventory.take(Checking(start.key, entry.launch.process.limits.time_limit_us))
        master = Master(start.master_address, start.master_port)
        return [LetGo(start.key), self._spawn(entry.launch, master, order)]

    def _to_abort(self, key: RankKey, entry: Entry | None) -> list[Action]:
        if isinstance(entry, AttemptView):
            return [StopProcess(key, StopCause.GANG, None)] if entry.phase.is_live else []
        if isinstance(entry, Refused):
            return [Tell(entry)]
        # Remembered until it is forgotten, so that a prepare or a start that comes late finds it void.
        aborted = self._refuse(key, NotLaunched.ABORTED, "the gang was aborted before it started")
        return [*_let_go(entry), *aborted]

    def _to_take_back(self, key: RankKey, entry: Entry | None) -> list[Action]:
        match entry:
            case None | InBacklog():
                # Remembered until it is forgotten, so that a launch that comes late finds it void.
                return self._hand_back(key, "the scheduler asked for it back")
            case _:
                return _told_again(entry)

    def _to_stop(self, stop: StopAttempt, entry: Entry | None) -> list[Action]:
        match entry:
            case AttemptView() if entry.phase.is_live:
                return [StopProcess(stop.key, stop.cause, stop.grace_us)]
            case AttemptView() | Refused():
                return _told_again(entry)
            case _:
                sentence = "it was stopped before it was started"
                return [*_let_go(entry), *self._refuse(stop.key, NotLaunched.STOPPED_BEFORE_START, sentence)]

    def _to_limit(self, key: RankKey, limit_us: int | None, entry: Entry | None) -> list[Action]:
        if isinstance(entry, Prepared):
            limits = replace(entry.launch.process.limits, time_limit_us=limit_us)
            renewed = replace(entry, launch=entry.launch.within(limits))
            self.inventory.take(renewed)
            return [Hold(renewed)]
        if isinstance(entry, InBacklog):
            limits = replace(entry.launch.process.limits, time_limit_us=limit_us)
            self.inventory.take(replace(entry, launch=entry.launch.within(limits)))
            return []
        is_live = isinstance(entry, AttemptView) and entry.phase.is_live
        return [LimitProcess(key, limit_us)] if is_live else []

    def _to_obey(self, key: RankKey, verdict: Verdict, entry: Entry | None) -> list[Action]:
        if isinstance(entry, Prepared) and verdict is Verdict.KILL:
            return self._to_abort(key, entry)  # whoever orders a Kill waits for the end of what may live
        if isinstance(entry, InBacklog) and verdict is Verdict.KILL:
            return self._to_stop(StopAttempt(key, StopCause.STALE, 0), entry)
        if not isinstance(entry, AttemptView):
            if verdict is Verdict.KEEP:
                return []
            self.inventory.drop(key)
            return [*_let_go(entry), *self._leave(key)]
        match obey(verdict, entry.phase):
            case Obedience.NOTHING:
                return []
            case Obedience.REPORT_END:
                return _told_again(entry)
            case Obedience.KILL:
                return [StopProcess(key, StopCause.STALE, 0)]
            case Obedience.KILL_THEN_FORGET:
                self._to_forget.add(key)
                return [StopProcess(key, StopCause.STALE, 0)]
            case Obedience.FORGET:
                return [ForgetAttempt(key)]

    def _spawn(self, command: LaunchAttempt, master: Master | None, order: Order) -> SpawnAttempt:
        return SpawnAttempt(command, master, max(self.fence_base_us, order.heartbeat_sent_us))

    def _hold(self, prepared: Prepared) -> list[Action]:
        self.inventory.take(prepared)
        return [Hold(prepared), Tell(prepared)]

    def _refuse_old(self, key: RankKey, refusal: CommandRefusal) -> list[Action]:
        if refusal is CommandRefusal.TOO_OLD:
            return self._refuse(key, NotLaunched.COMMAND_TOO_OLD, "the command rests on knowledge that is too old")
        sentence = "the command names no message of this agent that it rests on"
        return self._refuse(key, NotLaunched.COMMAND_TOO_OLD, sentence)

    def _refuse(self, key: RankKey, reason: str, sentence: str) -> list[Action]:
        refused = Refused(key, reason, sentence)
        self.inventory.take(refused)
        return [Tell(refused), *self._leave(key)]

    # --- slots

    def _hand_back(self, key: RankKey, sentence: str) -> list[Action]:
        return [*_let_go(self.inventory[key]), *self._refuse(key, NotLaunched.TAKEN_BACK, sentence)]

    def _leave_if_ended(self, view: AttemptView) -> list[Action]:
        if view.end is None:
            return []
        actions: list[Action] = []
        for key in () if hands_on(view.end) else self._slots.behind(view.key):
            if isinstance(self.inventory[key], InBacklog):
                actions += self._hand_back(key, f"attempt {view.key} before it was stopped")
        return [*actions, *self._leave(view.key)]

    def _leave(self, key: RankKey) -> list[Action]:
        """A rank needs its slot no more: begin the next one that waits for it."""
        following = self._slots.leave(key)
        entry = None if following is None else self.inventory[following]
        if not isinstance(entry, InBacklog):
            return []
        return [BeginNext(entry.launch, max(entry.sent_us, self.fence_base_us))]


def _ends(order: Order) -> bool:
    """Whether a command ends a rank that has not begun."""
    match order.command:
        case StopAttempt() | AbortAttempt():
            return True
        case JudgeAttempt(verdict=verdict):
            return verdict is not Verdict.KEEP
        case _:
            return False


def _let_go(entry: Entry | None) -> list[Action]:
    return [LetGo(entry.key)] if isinstance(entry, Prepared | InBacklog) else []


def _told_again(entry: Entry) -> list[Action]:
    """Say once more where a rank is, to a scheduler that asks as if it had not heard."""
    match entry:
        case AttemptView():
            return [Tell(seen) for seen in reports_of(None, entry)]
        case Refused() | Prepared():
            return [Tell(entry)]
        case Checking() | InBacklog():
            return []
        case _:
            assert_never(entry)


def _carried_out(order: Order) -> list[Action]:
    return [] if order.receipt is None else [CarriedOut(order.receipt)]
