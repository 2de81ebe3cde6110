"""A simulated agent: the shell around the agent's real core, as thin as it can be made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from gpufleet.v1 import node_agent_pb2, node_pb2

from gpufleet.jobs.run_protos import key_from_proto, key_to_proto
from gpufleet.jobs.runs import RankKey
from node_agent import wire
from node_agent.attempts import report_of
from node_agent.core.actions import (
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
    Order,
    SignalProcess,
    SpawnAttempt,
    StopProcess,
    Tell,
)
from node_agent.core.commands import Command, LaunchAttempt, refusal_of
from node_agent.core.delivery import Inbox, Judgement, Outbox
from node_agent.core.duties import BACKLOG_US_MAX, PREPARED_US_MAX, Duties
from node_agent.core.expectations import Misfit, Reading, misfit
from node_agent.core.fence import CommandRefusal
from node_agent.core.inventory import AttemptReport, InBacklog, Prepared, Refused
from node_agent.core.launch import Launch, Refusal
from node_agent.core.outcome import Stream
from node_agent.core.slots import noted_slot
from node_agent.core.uploads import Uploads
from node_agent.origins import noted_origin
from tests.simulation.left import Bringing
from tests.simulation.network import Call
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from tests.simulation.machine import Keeper, Machine

Report = AttemptReport | Refused | Prepared

REGISTER_SECONDS_MAX = 10.0
RETRY_SECONDS = (0.1, 3.0)
COMMANDS = ("launch", "prepare", "start", "abort", "take_back", "stop", "send_signal", "keep", "kill", "forget")

SLOW_CHECK_PROBABILITY = 0.2
SLOW_CHECK_SECONDS = (5.0, 45.0)
"""Files, an image or an environment may take so long."""

MASTER_PORT = 61_000
"""Every machine finds this one free."""


class Agent:
    """One process of the agent on a machine; another one has a higher incarnation."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.world: World = machine.world
        self._rng = self.world.rng(f"agent {machine.name} {machine.disk.incarnation}")
        machine.disk.incarnation += 1
        self.incarnation = machine.disk.incarnation
        self.is_alive = True
        self.duties = Duties()
        self._outbox: Outbox[Report] = Outbox()
        self._inbox = Inbox(machine.disk.highest_term)
        self._uploads = Uploads()
        self._bringing = Bringing(self)
        self._checks: dict[RankKey, int] = {}
        self._rng_of_checks = self.world.rng(f"checks {machine.name} {machine.disk.incarnation}")
        self._refused_samples: dict[RankKey, tuple[str, ...]] = {}
        self._heartbeats: Call | None = None
        self._output: Call | None = None
        self._dial_number = 0
        self._check_number = 0
        self._beat_us = 2_000_000
        self._valid_for_us = 30_000_000
        self.world.note("{}: agent {} starts", machine.name, self.incarnation)
        # Its actions are for an agent that has begun: nothing of it runs before this returns.
        self.world.after(0.0, self._begin)

    def _begin(self) -> None:
        if self.is_alive:
            self._perform(self.duties.adopt(self.machine.settle()))
            self._bringing.adopt({entry.key for entry in self.duties.inventory})
            self._dial()

    def die(self) -> None:
        self.is_alive = False
        for call in (self._heartbeats, self._output):
            if call is not None:
                call.hang_up()

    # --- the way to the scheduler

    def _dial(self) -> None:
        if not self.is_alive:
            return
        self._dial_number += 1
        number = self._dial_number
        self.world.after(REGISTER_SECONDS_MAX, self._dial_again, number)
        if self.world.network.is_reachable(self.machine.name):
            request = node_agent_pb2.RegisterRequest(
                node=self.machine.name,
                agent_id=self.machine.disk.agent_id,
                incarnation=self.incarnation,
                boot_id=self.machine.boot_id,
                info=self.machine.info,
                protocol_version=1,
                knows_lineages=True,
                keeps_backlog=True,
                store_position=self.machine.disk.store_position,
                store_id=self.machine.disk.store_id,
                highest_term=self._inbox.highest_term,
            )
            self.world.after(self.world.network.delay(), self.world.register, self, number, request)

    def _dial_again(self, number: int) -> None:
        if self.is_alive and number == self._dial_number and self._heartbeats is None:
            self._dial()

    def _redial(self) -> None:
        """After a pause, so that a fleet does not come back in one beat."""
        self._dial_number += 1
        self.world.after(self._rng.uniform(*RETRY_SECONDS), self._dial_again, self._dial_number)

    def registered(self, number: int, answer: node_agent_pb2.RegisterResponse | None) -> None:
        """The scheduler's answer to a registration; None when it was refused or the connection broke."""
        if not self.is_alive or number != self._dial_number or self._heartbeats is not None:
            return
        if answer is None or answer.term < self._inbox.highest_term:
            self._redial()
            return
        self._keep_position(answer.store_position)
        self.machine.disk.store_id = answer.store_id
        self._beat_us = answer.heartbeat_interval.ToMicroseconds()
        self._valid_for_us = answer.command_valid_for.ToMicroseconds()
        call = Call(self.world, self.machine.name, self._take, self._heartbeats_ended)
        self._heartbeats = call
        self.world.serve("Heartbeat", call)
        self._inbox.stream_opened()
        now_us = self.machine.boottime_us()
        sequence = self._outbox.number(now_us)
        inventory = wire.inventory_to_proto(
            self.duties.inventory,
            self.machine.boot_id,
            self.machine.info,
            now_us,
            forgotten=self.machine.forgotten() if answer.asks_for_all else None,
        )
        self._send(sequence, {"inventory": inventory})
        for old, report in self._outbox.repetitions():
            self._send(old, self._body(report))
        self._beat(call)
        self._open_output(call)

    def _keep_position(self, position: str) -> None:
        self.machine.disk.store_position = position or self.machine.disk.store_position

    def _heartbeats_ended(self) -> None:
        self._heartbeats = None
        if self._output is not None:
            self._output.hang_up()
            self._output = None
        if self.is_alive:
            self._redial()

    # --- heartbeats

    def _beat(self, call: Call) -> None:
        if not self.is_alive or call is not self._heartbeats:
            return
        samples = [self._sample(device) for device in self.machine.info.devices if not device.is_virtual]
        sequence = self._outbox.number(self.machine.boottime_us())
        preparations = [node_agent_pb2.Preparation(key=key_to_proto(key)) for key in self._checks]
        self._send(sequence, {"beat": node_agent_pb2.Beat(samples=samples, preparations=preparations)})
        self.machine.at_boottime(self.machine.boottime_us() + self._beat_us, self._beat, call)

    def _sample(self, device: node_pb2.Device) -> node_pb2.DeviceSample:
        is_foreign = device.uuid in self.machine.foreign
        return node_pb2.DeviceSample(
            uuid=device.uuid,
            utilization_percent=self._load(device),
            throttle_reasons=["hw_thermal_slowdown"] if device.uuid in self.machine.hot else [],
            memory_free_bytes=device.memory_bytes,
            processes=[node_pb2.DeviceProcess(pid=7, is_foreign=True)] if is_foreign else [],
            processes_are_known=True,
            is_healthy=True,
        )

    def _load(self, device: node_pb2.Device) -> int:
        """Each device works for a while and rests for longer, now and then for long enough to be told."""
        works = self.machine.boottime_us() // 8_000_000 % 7 == device.index % 7
        return 90 if works else 0

    def _send(self, sequence: int, body: dict[str, Any]) -> None:
        if self._heartbeats is not None:
            self._heartbeats.send(
                node_agent_pb2.HeartbeatRequest(
                    node=self.machine.name,
                    incarnation=self.incarnation,
                    sequence=sequence,
                    acked_sequence=self._inbox.acked_sequence,
                    **body,
                )
            )

    def _body(self, report: Report) -> dict[str, Any]:
        if isinstance(report, Refused):
            uuids = self._refused_samples.get(report.key, ())
            samples = [self._sample(device) for device in self.machine.info.devices if device.uuid in uuids]
            return {"launch_refused": wire.refused_to_proto(report, samples)}
        return report_of(report)(self.machine.boottime_us())

    def _take(self, message: node_agent_pb2.HeartbeatResponse) -> None:
        """What came down together, in order, as long as the stream stands."""
        stream = self._heartbeats
        for each in (message, *message.more):
            if self._heartbeats is stream:
                self._take_one(each)

    def _take_one(self, message: node_agent_pb2.HeartbeatResponse) -> None:
        """A message down: what it acknowledges, then what it asks."""
        if not self.is_alive:
            return
        before = self._inbox.highest_term
        judgement = self._inbox.judge(message.term, message.sequence)
        if judgement is Judgement.STALE_TERM:
            assert self._heartbeats is not None
            self._heartbeats.hang_up()
            self._heartbeats_ended()
            return
        if judgement is Judgement.DUPLICATE:
            return
        if message.term > before:
            self.machine.disk.highest_term = message.term
        self._keep_position(message.store_position)
        self._outbox.acknowledge(message.acked_sequence)
        sent_us = self._outbox.when(message.newest_heartbeat)
        if sent_us is not None and self.duties.heartbeat_heard(sent_us):
            self._with_keeper(0.0005, lambda keeper: keeper.set_fence(sent_us))
        receipt = self._inbox.receipt(message.sequence)
        command = wire.command_from_proto(message)
        if command is None or message.WhichOneof("command") not in COMMANDS:
            self._inbox.carried_out(receipt)
            return
        self.world.note("{}: is asked to {} {}", self.machine.name, message.WhichOneof("command"), command.key)  # type: ignore[union-attr]
        refusal = self._refusal_of(command, sent_us)
        order = Order(command=command, receipt=receipt, heartbeat_sent_us=sent_us or 0, refusal=refusal)  # type: ignore[arg-type]
        self._perform(self.duties.order(order))

    def _refusal_of(self, command: Command, sent_us: int | None) -> CommandRefusal | None:
        now_us, valid_for_us = self.machine.boottime_us(), self._valid_for_us
        refusal = refusal_of(command, heartbeat_sent_us=sent_us, now_us=now_us, valid_for_us=valid_for_us)
        if refusal is not None:
            self.world.met.add("a command that came too late")
        return refusal

    # --- what is to be done

    def _perform(self, actions: Iterable[Action]) -> None:
        to_do = deque(actions)
        while to_do:
            action = to_do.popleft()
            match action:
                case Tell(report=report):
                    self.world.note("{}: reports {}", self.machine.name, _short(report))
                    if isinstance(report, Prepared):
                        self.world.checks.prepared(report.key)
                    sequence = self._outbox.keep(report, self.machine.boottime_us())
                    self._send(sequence, self._body(report))
                    if isinstance(report, Refused):
                        self._never_ran(report.key)
                case CarriedOut(receipt=receipt):
                    self._inbox.carried_out(receipt)
                case Follow(view=view, is_new=is_new):
                    self._uploads.see(view, is_new=is_new)
                    self._pump()
                case GiveUpFiles(key=key):
                    self._after(0.0005, self._give_up, key)
                case CheckNode(command=command, is_prepare=is_prepare):
                    self._check(command, is_prepare)
                case Hold(held=held):
                    span_us = BACKLOG_US_MAX if isinstance(held, InBacklog) else PREPARED_US_MAX
                    self._after(span_us / 1e6, self._held_too_long, held)
                case BeginNext(launch=launch, sent_us=sent_us):
                    self.world.met.add("a rank of a backlog that is begun")
                    to_do.extend(self.duties.next_begun(launch.key, self._refusal_of(launch, sent_us)))
                case LetGo(key=key):
                    self._never_ran(key)
                case SpawnAttempt():
                    self._spawn(action)
                case StopProcess(key=key, cause=cause, grace_us=grace_us):
                    self._ask(key, lambda keeper, k=key, c=cause, g=grace_us: _stop(keeper, k, c, g))
                case SignalProcess(key=key) | LimitProcess(key=key):
                    self._ask(key, lambda keeper: None)
                case ForgetAttempt(key=key):
                    self._uploads.forget(key)
                    self._bringing.bring(key, partial(self._ask, key, lambda keeper, k=key: self.machine.forget(k)))
                case _:
                    assert_never(action)

    def _after(self, seconds: float, call: Any, *arguments: Any) -> None:
        """Do something later, if this process still lives then."""
        self.world.after(seconds, lambda: call(*arguments) if self.is_alive else None)

    def _check_seconds(self) -> float:
        return self._rng.choice((0.0, 0.0, 0.0, 0.002, 0.3))

    def _never_ran(self, key: RankKey) -> None:
        """Drop what a rank was to leave, if it is over without having been launched."""
        if isinstance(self.duties.inventory[key], Refused | None):
            self._bringing.never_ran(key)

    def _check(self, command: LaunchAttempt, is_prepare: bool) -> None:
        """Begin a check. One that is prepared for may take longer than a silent node is waited for."""
        self._check_number += 1
        self._checks[command.key] = self._check_number
        seconds = self._check_seconds()
        if command.is_prepared_for and self._rng_of_checks.random() < SLOW_CHECK_PROBABILITY:
            seconds = self._rng_of_checks.uniform(*SLOW_CHECK_SECONDS)
            if is_prepare:
                self.world.met.add("a rank of a gang that is prepared for long")
        self._after(seconds, self._checked, command, is_prepare, self._check_number)

    def _give_up(self, key: RankKey) -> None:
        if self._checks.pop(key, None) is not None:
            self._perform(self.duties.given_up(key))

    def _checked(self, command: LaunchAttempt, is_prepare: bool, number: int) -> None:
        if self._checks.get(command.key) != number:
            return
        del self._checks[command.key]
        if command.results or command.keep:
            self._bringing.expect(command.key, keeps=bool(command.keep))
        objection = self.machine.objection(command.key, command.process.argv) if is_prepare else None
        found = objection or self._misfit(command)
        if isinstance(found, Misfit):
            self._refused_samples[command.key] = found.uuids
        port = MASTER_PORT if is_prepare and command.key.rank == 0 else 0
        self._perform(self.duties.checked(command.key, found, port))

    def _held_too_long(self, held: Prepared | InBacklog) -> None:
        self._perform(self.duties.held_too_long(held, self.machine.boottime_us()))

    def _misfit(self, command: LaunchAttempt) -> Misfit | None:
        readings = [
            Reading(
                uuid=device.uuid,
                age_us=0,
                memory_free_bytes=device.memory_bytes,
                foreign_pids=(7,) if device.uuid in self.machine.foreign else (),
            )
            for device in self.machine.info.devices
        ]
        return misfit(command.expectations, readings)

    def _spawn(self, action: SpawnAttempt) -> None:
        """The keeper is asked; it does so even when this process dies meanwhile, and asked again when it died."""
        command = action.command
        self.world.checks.kept.begins(command.key, "" if command.kept is None else command.kept.digest)
        asked = Launch(
            key=command.key,
            process=replace(command.process, env={}, cwd="/"),
            heartbeat_sent_us=action.heartbeat_sent_us,
            note=noted_origin(command.origin) + noted_slot(command.slot),
        )

        def ask(keeper: Keeper) -> None:
            answer, was_known = keeper.launch(
                asked, dict.fromkeys(command.expectations.device_uuids, command.share_milli), command.cpus
            )
            if self._rng.random() < 0.1:
                self._after(0.2, self._spawn, action)  # the answer did not come in time: it is asked again
            else:
                self._after(0.0005, self._spawned, command.key, answer, was_known)

        self._with_keeper(self._rng.choice((0.0005, 0.0005, 0.02)), ask, lambda: self._spawn(action))

    def _spawned(self, key: RankKey, answer: Any, was_known: bool) -> None:
        if isinstance(answer, Refusal):
            self._perform(self.duties.spawned(key, answer, was_known=False))
        else:
            self._perform(self.duties.spawned(key, answer, was_known=was_known))
        self._never_ran(key)

    def _ask(self, key: RankKey, request: Any) -> None:
        def ask(keeper: Keeper) -> None:
            request(keeper)
            self._after(0.0005, lambda: self._perform(self.duties.done(key)))

        self._with_keeper(0.0005, ask, lambda: self._after(0.2, self._ask, key, request))

    def _with_keeper(self, seconds: float, ask: Any, otherwise: Any = None) -> None:
        """Send the keeper a request. A dead one answers nothing; then it is asked again, if there is an otherwise."""
        keeper = self.machine.keeper

        def arrive() -> None:
            if keeper is not None and keeper.is_alive and self.machine.agent in (self, None):
                ask(keeper)  # it listens to an agent that died, too, until another one is there
            elif otherwise is not None and self.is_alive:
                self._after(0.2, otherwise)

        self.world.after(seconds, arrive)

    # --- what keepers say

    def changed(self, keeper: Keeper, key: RankKey, change: Change) -> None:
        if self.is_alive and keeper.is_alive:
            self._perform(self.duties.changed(key, change))

    def keeper_died(self, keeper: Keeper) -> None:
        """Its attempts are killed and over; another keeper is started."""
        if not self.is_alive:
            return
        before = {key for key, record in self.machine.disk.records.items() if record.end is None}
        for view in self.machine.settle():
            if view.key in before:
                self._perform(self.duties.saw(view))

    # --- output

    def _open_output(self, heartbeats: Call) -> None:
        if not self.is_alive or heartbeats is not self._heartbeats:
            return
        call = Call(self.world, self.machine.name, self._synced, lambda: self._output_ended(heartbeats))
        self._output = call
        self._uploads.connected()
        self.world.serve("ReportOutput", call)
        self._pump()

    def _output_ended(self, heartbeats: Call) -> None:
        self._output = None
        self._after(self._rng.uniform(*RETRY_SECONDS), self._open_output, heartbeats)

    def _pump(self) -> None:
        """Send what may be sent."""
        if self._output is None:
            return
        asks = [_position(key, stream) for key, stream in self._uploads.questions()]
        chunks = []
        while (what := self._uploads.next()) is not None:
            key, stream = what.stream.key
            spooled = self.machine.disk.of(key, stream)
            is_deleted = what.piece.start < min(what.piece.end, spooled.start)
            if is_deleted and (key, stream) in self.machine.disk.unwanted:
                self.world.met.add("output that was unwanted and is wanted after all")
                self._uploads.lose_from(what.stream, what.piece.start)
                self._perform(self.duties.output_lost(key, stream, what.piece.start))
                continue
            if is_deleted:
                raise Broken(
                    f"{stream.value} of {key} is asked for again from {what.piece.start}, and is deleted there"
                )
            data = spooled.read(what.piece.start, what.piece.end) if what.piece.end > what.piece.start else b""
            self._uploads.sent(what, len(data))
            chunks.append(
                node_agent_pb2.OutputChunk(
                    key=key_to_proto(key),
                    stream=wire.STREAMS[stream],
                    offset=what.piece.start,
                    data=data,
                    is_end=what.is_end,
                )
            )
        if asks or chunks:
            self._output.send(
                node_agent_pb2.ReportOutputRequest(
                    node=self.machine.name, incarnation=self.incarnation, chunks=chunks, asks=asks
                )
            )

    def _synced(self, answer: node_agent_pb2.ReportOutputResponse) -> None:
        if not self.is_alive:
            return
        for position in answer.synced:
            key, stream = key_from_proto(position.key), wire.STREAMS_BY_NUMBER[position.stream]
            self._uploads.synced(
                (key, stream), position.offset, is_end=position.is_end, is_unwanted=position.is_unwanted
            )
            if position.is_unwanted:
                self.machine.disk.unwanted.add((key, stream))
            if key in self.machine.disk.records:
                self.machine.disk.delete_below(key, stream, position.offset)
        self._pump()


def _stop(keeper: Keeper, key: RankKey, cause: Any, grace_us: int | None) -> None:
    kept = keeper.attempts.get(key)
    if kept is not None:
        kept.stop(cause, grace_us)


def _position(key: RankKey, stream: Stream) -> node_agent_pb2.OutputPosition:
    return node_agent_pb2.OutputPosition(key=key_to_proto(key), stream=wire.STREAMS[stream])


def _short(report: Report) -> str:
    what = type(report).__name__
    if isinstance(report, Refused):
        return f"{what} {report.key} {report.reason}"
    return f"{what} {report.view.key if not isinstance(report, Prepared) else report.key}"
