"""Runs the transcripts of sessions: a command a line, and indented under it what was decided. See transcript.py.

model canvas turn=60s            # serve a model; its numbers as `serve` takes them
worker w1 seats=2                # a worker's stream begins, ready; `loading` for one that is not yet
join ann                         # ann's browser joins the line; s1 is her session
open ann                         # her browser opens the stream: the turn is claimed
input ann                        # her worker saw real input now; `quiet ann 12s`: the last was 12 s ago
lost ann / close ann / leave ann # her connection broke, was closed cleanly, she left for good
join ann model=other keeps-other # rather not at all than at the price of what ann has with another model
join ann from=lab                # she comes from this address
join ann knows=h1                # she said the pass phrase of this hash; `says`: another; `user=`: is logged in
back ann                         # she is there again with her key (`as=bob`: whose identity, `model=` another line)
end ann LEFT epoch=1             # her worker says that her turn of that epoch has ended
gone w1 / back-worker w1         # a worker's stream breaks, begins anew (`lists=ann:30s` lives on it)
back-worker w1 gave-up=ann       # it first tells that it has waited too long for a stream of hers, and then reports
silence w1                       # the reports of a worker do not get through; `off`: they do again
drain w1, advance 10s, restart, line, stop-model
serve canvas gpus=1 min=1 max=4  # serve a model by workers that are jobs; more words as a job's in transcript.py
serve chat program target=2 min=0 max=4 # serve a program: its replicas follow the requests, `wait=` and `idle=`
serve chat program gpus=1 cpus=2 # served otherwise: another revision; `in-place`: for want of room one goes first
serve chat program gpus=1 min=0 group=small by=ann # it shares GPUs with ann's other programs of that group
group small by=ann               # how the programs of a group stand
rollback chat                    # as it was served before; `in-place chat`: the same, for an update that waits
requests chat under=1 waiting=2 waited=5s gateway=7  # a gateway has these now; nothing named: none
call w1 job=1 seats=2 loading    # the worker of a job begins its stream
fails w1 "no module torch"       # it says that it goes down, and why
settings canvas turn=2m          # the settings say numbers of a model; `numbers canvas` shows those that hold
node, inventory, silent, beat, submit, cancel, hold, release, requeue, started, exited, refused: see transcript.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from gpufleet.v1 import sessions_pb2

from scheduler.core.sessions.story import tell_session_command
from scheduler.core.story import tell, tell_command
from scheduler.policy.sessions.exclusive import members_of
from scheduler.state.events import ClockAdvanced
from scheduler.state.ids import JobId, UserName
from scheduler.state.replies import Joined, Refused
from scheduler.state.sessions.commands import OfferSeat, SessionCommand, TellEnd, TellPerson, TellPlace
from scheduler.state.sessions.events import (
    CloseRequested,
    Connection,
    ConnectionLost,
    GatewayLost,
    JoinRequested,
    LeaveRequested,
    ReportedTurn,
    RequestsReported,
    ServeRequested,
    SessionEvent,
    StepBroke,
    StopModelRequested,
    TurnClosed,
    WorkerDrainRequested,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
    WorkerState,
    WorkerUnreachable,
)
from scheduler.state.sessions.serving import Requests
from scheduler.state.sessions.session import (
    Access,
    EndReason,
    HttpService,
    Identity,
    Model,
    ModelName,
    SessionId,
    SessionLimits,
    WorkerId,
)
from scheduler.state.units import SECOND, Instant, Span
from scheduler.wire.convert_sessions import model_proto
from tests.core.fleet import Fleet, Turn
from tests.core.transcript import COMMANDS as JOB_COMMANDS
from tests.core.transcript import Transcript
from tests.core.transcript_text import GAP, clock_text, wrapped
from tests.core.words import Words, span_of, spec_of

GATEWAY = 1
"""The gateway's stream on which everybody is who is on no other."""


class SessionTranscript:
    """One run of a golden file."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.model = ModelName("")
        self.connections: dict[str, Connection] = {}
        self.sessions: dict[str, SessionId] = {}
        self.streams: dict[WorkerId, int] = {}
        self.seats: dict[WorkerId, int] = {}
        self.offered: dict[SessionId, tuple[WorkerId, int]] = {}
        self.worker_jobs: dict[WorkerId, JobId] = {}
        self.jobs = Jobs(self)
        self.silent: set[WorkerId] = set()

    def answer(self, line: str) -> list[str]:
        """Run one command and tell what followed."""
        words = Words.of(line)
        command = COMMANDS[words.next()]
        lines = [each for told in command(self, words) for each in wrapped(told)]
        words.assert_empty()
        return lines

    @property
    def now(self) -> Instant:
        return self.fleet.now

    # --- telling

    def told(self, turns: Turn | Iterable[Turn], *, timed: bool = False) -> list[str]:
        lines: list[str] = []
        for turn in [turns] if isinstance(turns, Turn) else turns:
            said: list[str] = []
            if isinstance(turn.reply, Refused):
                said.append(f"! {turn.reply.reason}: {turn.reply.message}")
            if turn.records:
                said.append(GAP.join(tell(record) for record in turn.records))
            said.extend(map(tell_command, turn.commands))
            for command in turn.session_commands:
                said.append(f"-> {tell_session_command(command)}{self._details(command)}")
                if isinstance(command, OfferSeat):
                    self.offered[command.session] = (command.worker, command.epoch)
            if said and timed:
                lines.append(f"@{clock_text(turn.at)}")
            lines.extend(said)
        return lines

    def _details(self, command: SessionCommand) -> str:
        match command:
            case TellPlace(estimate=estimate, bound=bound, bound_cause=cause):
                parts = [] if estimate is None else [f"estimate {self._span(estimate)}"]
                parts.append("no bound" if bound is None else f"bound {self._span(bound)}")
                return ", " + ", ".join(parts) + (f" ({cause})" if cause else "")
            case TellPerson(message=message, ends_at=ends_at):
                return f": {message}" + ("" if ends_at is None else f", in {self._span(ends_at)}")
            case TellEnd(message=message):
                return f": {message}"
            case _:
                return ""

    def _span(self, at: Instant) -> str:
        return f"{(at - self.now) / SECOND:g}s"

    def take_up(self, event: SessionEvent) -> list[str]:
        return self.told(self.fleet.take_up(event))

    # --- models and workers

    def serve(self, words: Words) -> list[str]:
        self.model = ModelName(words.next())
        model = self._numbered(Model(name=self.model, owner=UserName("alice")), words)
        return self.take_up(ServeRequested(at=self.now, model=model, keeps_workers=True))

    def _numbered(self, model: Model, words: Words) -> Model:
        """The model with the numbers that are named."""
        numbers: dict[str, Any] = {
            name: span_of(text)
            for name in ("idle", "turn", "turn_warning", "idle_warning")
            if (text := words.value(name.replace("_", "-")))
        }
        if grace := words.value("turn-grace"):
            numbers["grace"] = span_of(grace)
        if line := words.integer("line", 0):
            numbers["line_length"] = line
        for name in ("places_per_address", "seats_per_address"):
            if (people := words.integer(name.replace("_", "-"), -1)) >= 0:
                numbers[name] = people
        if access := words.value("access"):
            numbers |= {"access": Access[access], "pass_phrase_hash": words.value("phrase")}
        return replace(model, limits=replace(model.limits, **numbers), chosen=tuple(sorted(numbers)))

    def serve_workers(self, words: Words) -> list[str]:
        self.model = ModelName(words.next())
        least, most = words.integer("min", 1), words.integer("max", 1)
        owner = UserName(words.value("by", "alice"))
        model = self._numbered(Model(name=self.model, owner=owner), words)
        spec = replace(spec_of(words, self.now), serves=self.model, name=self.model)
        model = replace(model, worker=spec, min_workers=least, max_workers=most)
        if words.switch("program"):
            target, wait = words.integer("target", 8), span_of(words.value("wait", "2s"))
            idle = model.limits.idle if "idle" in model.chosen else span_of("10m")
            http = HttpService(argv=("serve",), target_concurrency=target, target_wait=wait, idle=idle)
            group = words.value("group")
            model = replace(model, http=http, limits=SessionLimits(), chosen=(), exclusive_group=group)
        else:
            model = replace(model, entry_point="models:Canvas")
        return self.take_up(ServeRequested(at=self.now, model=model, is_in_place=words.switch("in-place")))

    def group(self, words: Words) -> list[str]:
        """As `gpuctl models` tells it."""
        group, state = (UserName(words.value("by", "alice")), words.next()), self.fleet.state
        told: list[str] = []
        for model in members_of(state.durable, group):
            shown = model_proto(model, state.durable, state.live.turns, lambda _: {}).in_group
            name = sessions_pb2.GroupState.Name(shown.state).removeprefix("GROUP_STATE_").lower()
            told.append(f"{model.name} is {name}" + (f": {shown.message}" if shown.message else ""))
        return told

    def rollback(self, words: Words) -> list[str]:
        model = Model(name=ModelName(words.next()), owner=UserName("alice"))
        return self.take_up(ServeRequested(at=self.now, model=model, rolls_back=True))

    def in_place(self, words: Words) -> list[str]:
        model = Model(name=ModelName(words.next()), owner=UserName("alice"))
        return self.take_up(ServeRequested(at=self.now, model=model, keeps_workers=True, is_in_place=True))

    def requests(self, words: Words) -> list[str]:
        """What a gateway tells of one program is all that it has."""
        name, gateway = ModelName(words.next()), words.integer("gateway", GATEWAY)
        under_way, waiting = words.integer("under", 0), words.integer("waiting", 0)
        since = Instant(self.now - span_of(words.value("waited", "0s"))) if waiting else None
        found = Requests(under_way=under_way, waiting=waiting, waits_since=since)
        told = {} if found == Requests() else {name: found}
        return self.take_up(RequestsReported(at=self.now, gateway=gateway, requests=told))

    def settings(self, words: Words) -> list[str]:
        """The settings say numbers of a model, as after a reload: the engine then lets time be looked at."""
        name = ModelName(words.next())
        model = self._numbered(Model(name=name, owner=UserName("")), words)
        self.fleet.limits = replace(self.fleet.limits, sessions={name: model.limits})
        self.fleet.state.limits = self.fleet.limits
        return self.told(self.fleet.take_up(ClockAdvanced(at=self.now)))

    def numbers(self, words: Words) -> list[str]:
        limits = self.fleet.state.durable.models[ModelName(words.next())].limits
        spans = ", ".join(f"{name} {getattr(limits, name) / SECOND:g}s" for name in ("idle", "turn", "grace"))
        return [f"{spans}, line {limits.line_length}"]

    def stop_model(self, words: Words) -> list[str]:
        name = ModelName(words.next())
        return self.take_up(StopModelRequested(at=self.now, model=name, by=UserName("alice")))

    def worker(self, words: Words) -> list[str]:
        worker = WorkerId(words.next())
        self.seats[worker] = words.integer("seats", 1)
        state = WorkerState.LOADING if words.switch("loading") else WorkerState.READY
        return [*self._join_worker(worker), *self._report(worker, state)]

    def back_worker(self, words: Words) -> list[str]:
        worker = WorkerId(words.next())
        listed = words.value("lists").split(",")
        turns = [self._listed(each) for each in listed if each]
        lines = self._join_worker(worker)
        for name in filter(None, words.value("gave-up").split(",")):
            lines += self._end(name, EndReason.DISCONNECTED)
        return lines + self._report(worker, WorkerState.READY, *turns)

    def _listed(self, text: str) -> ReportedTurn:
        name, _, age = text.partition(":")
        session = self.sessions[name]
        return ReportedTurn(
            session=session, epoch=self.offered[session][1], age=span_of(age or "0s"), since_input=Span(0)
        )

    def call(self, words: Words) -> list[str]:
        worker = WorkerId(words.next())
        self.seats[worker] = words.integer("seats", 1)
        self.worker_jobs[worker] = JobId(words.integer("job", 0))
        state = WorkerState.LOADING if words.switch("loading") else WorkerState.READY
        return [*self._join_worker(worker), *self._report(worker, state)]

    def fails(self, words: Words) -> list[str]:
        worker = WorkerId(words.next())
        return self.take_up(
            WorkerReported(
                at=self.now,
                worker=worker,
                stream=self.streams[worker],
                state=WorkerState.FAILED,
                seats=0,
                message=words.next(),
            )
        )

    def _join_worker(self, worker: WorkerId) -> list[str]:
        self.streams[worker] = self.streams.get(worker, 0) + 1
        return self.take_up(
            WorkerJoined(
                at=self.now,
                worker=worker,
                model=self._model_of(worker),
                endpoint=f"{worker}:8001",
                stream=self.streams[worker],
                by=UserName("alice"),
                job=self.worker_jobs.get(worker),
            )
        )

    def _model_of(self, worker: WorkerId) -> ModelName:
        job = self.worker_jobs.get(worker)
        return self.model if job is None else self.fleet.job(job).spec.serves

    def ready(self, words: Words) -> list[str]:
        return self._report(WorkerId(words.next()), WorkerState.READY)

    def drain(self, words: Words) -> list[str]:
        return self._report(WorkerId(words.next()), WorkerState.DRAINING)

    def drain_worker(self, words: Words) -> list[str]:
        start, job = words.value("start"), words.integer("job", 0)
        return self.take_up(
            WorkerDrainRequested(
                at=self.now,
                model=self.model,
                by=UserName("alice"),
                worker=WorkerId(start) if start else None,
                job=JobId(job) if job else None,
                reason=words.value("because"),
            )
        )

    def _report(self, worker: WorkerId, state: WorkerState, *turns: ReportedTurn) -> list[str]:
        return self.take_up(
            WorkerReported(
                at=self.now,
                worker=worker,
                stream=self.streams[worker],
                state=state,
                turns=turns,
                seats=self.seats[worker],
            )
        )

    def gone(self, words: Words) -> list[str]:
        worker = WorkerId(words.next())
        named = tuple(self.sessions[name] for name in words.value("blames").split(",") if name)
        lost = WorkerLost(at=self.now, worker=worker, stream=self.streams[worker])
        if not named:
            return self.take_up(lost)
        failed = WorkerReported(
            at=self.now,
            worker=worker,
            stream=self.streams[worker],
            state=WorkerState.FAILED,
            seats=self.seats[worker],
            blamed=named,
        )
        return [*self.take_up(failed), *self.take_up(lost)]

    # --- people

    def join(self, words: Words) -> list[str]:
        return self._join(words.next(), words)

    def crowd(self, words: Words) -> list[str]:
        """Many people join; only how many is told."""
        count = int(words.next())
        for number in range(count):
            self._join(f"p{number}", words)
        return [f"{count} people joined"]

    def _join(self, name: str, words: Words) -> list[str]:
        number = max((each.number for each in self.connections.values()), default=0) + 1
        self.connections[name] = Connection(gateway=words.integer("gateway", GATEWAY), number=number)
        turn = self.fleet.take_up(
            JoinRequested(
                at=self.now,
                connection=self.connections[name],
                model=ModelName(words.value("model", self.model)),
                identity=Identity(words.value("as", name)),
                key_digest=f"key-{self.fleet.state.durable.counters.next_session}",
                keeps_other=words.switch("keeps-other"),
                address=words.value("from", ""),
                proved_hash=(known := words.value("knows")),
                said_phrase=words.switch("says") or known != "",
                user=words.value("user"),
            )
        )
        if isinstance(turn.reply, Joined):
            self.sessions[name] = turn.reply.session
        return self.told(turn)

    def lost(self, words: Words) -> list[str]:
        return self.take_up(ConnectionLost(at=self.now, connection=self.connections[words.next()]))

    def gateway_lost(self, words: Words) -> list[str]:
        return self.take_up(GatewayLost(at=self.now, gateway=int(words.next())))

    def close(self, words: Words) -> list[str]:
        return self._leave(words.next(), is_final=False)

    def leave(self, words: Words) -> list[str]:
        return self._leave(words.next(), is_final=True)

    def _leave(self, name: str, *, is_final: bool) -> list[str]:
        return self.take_up(LeaveRequested(at=self.now, connection=self.connections[name], is_final=is_final))

    def unreachable(self, words: Words) -> list[str]:
        return self.take_up(WorkerUnreachable(at=self.now, connection=self.connections[words.next()]))

    def broke(self, words: Words) -> list[str]:
        """The person's gateway says that a step of theirs was under way as the stream broke."""
        name = words.next()
        epoch = words.integer("epoch", self.offered[self.sessions[name]][1])
        return self.take_up(
            StepBroke(
                at=self.now,
                connection=self.connections[name],
                epoch=epoch,
                input=words.value("input"),
                has_frame=not words.switch("no-frame"),
            )
        )

    def kick(self, words: Words) -> list[str]:
        session = self.sessions[words.next()]
        return self.take_up(CloseRequested(at=self.now, session=session, by=UserName("alice")))

    # --- turns, as their workers see them

    def open(self, words: Words) -> list[str]:
        name = words.next()
        epoch = words.integer("epoch", 0)
        return self._see(name, None if words.switch("paused") else Span(0), epoch)

    def quiet(self, words: Words) -> list[str]:
        name = words.next()
        return self._see(name, span_of(words.next()))

    def input(self, words: Words) -> list[str]:
        return self._see(words.next(), Span(0))

    def _see(self, name: str, since_input: Span | None, epoch: int = 0) -> list[str]:
        seen = self._seen(name, since_input, epoch)
        worker, _ = self.offered[self.sessions[name]]
        return self._report(worker, self.fleet.state.live.turns.workers[worker].state, seen)

    def _seen(self, name: str, since_input: Span | None, epoch: int = 0) -> ReportedTurn:
        session = self.sessions[name]
        turn = self.fleet.state.live.turns.turns.get(session)
        lasted = 0 if turn is None or turn.started_at is None else self.now - turn.started_at
        return ReportedTurn(
            session=session, epoch=epoch or self.offered[session][1], age=Span(lasted), since_input=since_input
        )

    def end(self, words: Words) -> list[str]:
        name = words.next()
        return self._end(name, EndReason(words.next()), words.integer("epoch", 0))

    def _end(self, name: str, reason: EndReason, epoch: int = 0) -> list[str]:
        session = self.sessions[name]
        worker, offered = self.offered[session]
        return self.take_up(
            TurnClosed(
                at=self.now,
                worker=worker,
                stream=self.streams[worker],
                session=session,
                epoch=epoch or offered,
                reason=reason,
            )
        )

    # --- time

    def advance(self, words: Words) -> list[str]:
        return self.told(self._advance(Instant(self.now + span_of(words.next()))), timed=True)

    def _advance(self, end: Instant) -> Iterator[Turn]:
        """Workers that are there report as often as nodes beat: nothing new."""
        while self.now < end:
            yield from self.fleet.advance(min(self.fleet.limits.heartbeat_interval, end - self.now))
            for report in self._nothing_new():
                yield self.fleet.take_up(report)

    def _nothing_new(self) -> list[WorkerReported]:
        return [
            WorkerReported(at=self.now, worker=each.id, stream=each.stream, state=each.state, seats=each.seats)
            for each in self.fleet.state.live.turns.workers.values()
            if each.reports and each.id not in self.silent
        ]

    def silence(self, words: Words) -> list[str]:
        """A worker's reports do not get through; `silence w1 off`: they do again."""
        worker = WorkerId(words.next())
        (self.silent.discard if words.switch("off") else self.silent.add)(worker)
        return []

    def restart(self, words: Words) -> list[str]:
        self.connections.clear()
        return self.told(self.fleet.restart())

    def line(self, words: Words) -> list[str]:
        sessions = self.fleet.state.durable.sessions
        names = {session: name for name, session in self.sessions.items()}
        waiting = [names[each.id] for each in sessions.line(self.model)]
        seated = [
            f"{names[each.id]} on {worker}" for worker in sorted(sessions.seated) for each in sessions.on_worker(worker)
        ]
        return [f"waiting: {', '.join(waiting) or 'nobody'}; seated: {', '.join(seated) or 'nobody'}"]


class Jobs(Transcript):
    """The same fleet's nodes and jobs; what follows is told with what sessions are told."""

    def __init__(self, transcript: SessionTranscript) -> None:
        super().__init__()
        self.fleet = transcript.fleet
        self._transcript = transcript

    def told(self, turns: Turn | Iterable[Turn], *, timed: bool = False) -> list[str]:
        return self._transcript.told(turns, timed=timed)


def _of_jobs(name: str) -> Command:
    return lambda transcript, words: JOB_COMMANDS[name](transcript.jobs, words)


Command = Callable[[SessionTranscript, Words], list[str]]
COMMANDS: dict[str, Command] = {
    "model": SessionTranscript.serve,
    "stop-model": SessionTranscript.stop_model,
    "worker": SessionTranscript.worker,
    "back-worker": SessionTranscript.back_worker,
    "ready": SessionTranscript.ready,
    "drain": SessionTranscript.drain,
    "drain-worker": SessionTranscript.drain_worker,
    "gone": SessionTranscript.gone,
    "join": SessionTranscript.join,
    "crowd": SessionTranscript.crowd,
    "back": SessionTranscript.join,
    "lost": SessionTranscript.lost,
    "gateway-lost": SessionTranscript.gateway_lost,
    "close": SessionTranscript.close,
    "leave": SessionTranscript.leave,
    "unreachable": SessionTranscript.unreachable,
    "kick": SessionTranscript.kick,
    "broke": SessionTranscript.broke,
    "open": SessionTranscript.open,
    "input": SessionTranscript.input,
    "quiet": SessionTranscript.quiet,
    "end": SessionTranscript.end,
    "advance": SessionTranscript.advance,
    "restart": SessionTranscript.restart,
    "line": SessionTranscript.line,
    "serve": SessionTranscript.serve_workers,
    "group": SessionTranscript.group,
    "rollback": SessionTranscript.rollback,
    "in-place": SessionTranscript.in_place,
    "requests": SessionTranscript.requests,
    "call": SessionTranscript.call,
    "fails": SessionTranscript.fails,
    "settings": SessionTranscript.settings,
    "numbers": SessionTranscript.numbers,
    "silence": SessionTranscript.silence,
}
OF_JOBS = (
    "node",
    "inventory",
    "disconnect",
    "silent",
    "beat",
    "submit",
    "cancel",
    "hold",
    "release",
    "requeue",
    "started",
    "exited",
    "refused",
    "limit",
    "show",
    "story",
)
COMMANDS.update({name: _of_jobs(name) for name in OF_JOBS})
