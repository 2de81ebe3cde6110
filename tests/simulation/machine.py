"""A simulated machine: its clock, its processes, and the keeper, whose decisions are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpufleet.v1 import node_pb2

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus, RankKey, StopCause
from node_agent.core import adoption, attempt, launch
from node_agent.core.adoption import LaunchDecision, RecordFate
from node_agent.core.attempt import (
    Ending,
    Finish,
    Phase,
    Running,
    SendKill,
    SendTerm,
    Wait,
    next_step_of_ending,
    observe,
)
from node_agent.core.launch import Launch, NotRun, Objection, Refusal, RefusalReason
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, LaunchFailure, Offsets, Stream
from tests.simulation.disks import AttemptRecord, NodeDisk
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

BOOTTIME_AT_START_US = 1_000_000_000
"""Machines have been up for a while when they are first looked at."""

SIGTERM, SIGKILL = 15, 9

DRIFT_MAX = 0.009
"""Clocks of nodes run at most 1 % faster or slower than the scheduler's, which is what the fence allows for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a job's program does, written in its argv: how long it runs, what it prints, how it takes signals."""

    seconds: float
    code: int
    lines: int
    term_seconds: float
    dies_seconds: float
    lingers_seconds: float
    trouble: str

    def argv(self) -> tuple[str, ...]:
        return tuple(map(str, (*(getattr(self, name) for name in self.__slots__),)))

    @classmethod
    def of(cls, argv: tuple[str, ...]) -> Plan:
        seconds, code, lines, term, dies, lingers, trouble = argv
        return cls(float(seconds), int(code), int(lines), float(term), float(dies), float(lingers), trouble)


NEVER = float("inf")


class Process:
    """A job's process group on a machine. It is real as far as this world goes: the checks count these.

    `devices` is how much it has of each, in thousandths; 0 for the whole.
    """

    has_fence = True
    """Whether it is dead before another attempt begins; a worker of a model need not be."""

    def __init__(self, machine: Machine, asked: Launch, devices: Mapping[str, int], cpus: int) -> None:
        self.machine = machine
        self.key = asked.key
        self.devices = devices
        self.cpus = cpus
        self.plan = Plan.of(asked.process.argv)
        self.is_alive = True
        self.began_at = machine.world.now
        self.status: ExitStatus | None = None
        self.written: dict[Stream, bytearray] = {stream: bytearray() for stream in Stream}
        self._is_ending = False

    def begin(self) -> None:
        world, plan = self.machine.world, self.plan
        for line in range(plan.lines):
            world.after(plan.seconds * (line + 1) / (plan.lines + 1), self._print, line)
        world.after(plan.seconds, self._exit, ExitCode(code=plan.code))

    def _print(self, line: int) -> None:
        if self.is_alive:
            stream = Stream.STDERR if line % 4 == 3 else Stream.STDOUT
            self._write(stream, f"{self.key} line {line}\n".encode() * (1 + line % 3))

    def _write(self, stream: Stream, data: bytes) -> None:
        self.written[stream] += data
        kept = self.machine.kept(self)
        if kept is not None:
            kept.take(stream, data)

    def term(self) -> None:
        if self.is_alive and self.plan.term_seconds != NEVER and not self._is_ending:
            self._is_ending = True
            self.machine.world.after(self.plan.term_seconds, self._exit, ExitSignal(signal=SIGTERM))

    def kill(self) -> None:
        """Dead soon, not at once: a driver may have to be left first."""
        if self.is_alive:
            self.machine.world.after(self.plan.dies_seconds, self._exit, ExitSignal(signal=SIGKILL))

    def kill_and_wait(self) -> None:
        """Dead when this returns."""
        if self.is_alive:
            self._exit(ExitSignal(signal=SIGKILL))

    def vanish(self) -> None:
        """Its machine has no power any more."""
        self.is_alive = False

    def _exit(self, status: ExitStatus) -> None:
        if not self.is_alive:
            return
        if isinstance(status, ExitCode) and not self._is_ending:
            self._write(Stream.STDOUT, f"{self.key} last words\n".encode())
        self.is_alive = False
        self.status = status
        self.machine.world.note("{}: process {} ends: {}", self.machine.name, self.key, status)
        kept = self.machine.kept(self)
        if kept is not None:
            kept.leader_exited(status)


ProcessMaker = Callable[["Machine", Launch, Mapping[str, int], int], Process]


class Kept:
    """One attempt in the keeper's hands; what is done next is asked of the core."""

    def __init__(self, keeper: Keeper, asked: Launch, process: Process | None) -> None:
        self.key = asked.key
        self._note = asked.note
        self._keeper = keeper
        self._machine = keeper.machine
        self.process = process
        self.phase: Phase = Running(
            limits=asked.process.limits,
            started_us=self._machine.boottime_us(),
            heartbeat_sent_us=asked.heartbeat_sent_us,
        )
        self.started_us = self._machine.boottime_us()
        self.end: AttemptEnd | None = None
        self._status: ExitStatus | None = None
        self._ending: Ending | None = None
        self._exited_us = 0
        self._timer = 0

    def view(self) -> AttemptView:
        if self.end is not None:
            phase = AttemptPhase.ENDED
        elif self._ending is not None:
            phase = AttemptPhase.ENDING
        else:
            phase = AttemptPhase.RUNNING if isinstance(self.phase, Running) else AttemptPhase.STOPPING
        return AttemptView(
            key=self.key,
            phase=phase,
            keeper_id=self._keeper.id,
            directory=str(self.key),
            pid=1,
            started_us=self.started_us,
            stop_cause=attempt.stop_cause(self.phase),
            output_starts=self._machine.disk.starts(self.key),
            output_ends=self._offsets(),
            note=self._note,
            end=self.end,
        )

    def act(self) -> None:
        """Do what is due, and come back when the next thing is."""
        if self._ending is not None:
            self._reconsider()
            return
        action = attempt.next_action(self.phase, self._machine.boottime_us())
        self.phase = attempt.after(self.phase, action)
        self._carry_out(action)

    def stop(self, cause: StopCause, grace_us: int | None) -> None:
        if self._status is None and self.end is None:
            self.phase, action = attempt.stop(self.phase, cause, grace_us, self._machine.boottime_us())
            self._carry_out(action)

    def heartbeat_acknowledged(self, sent_us: int) -> None:
        self.phase = attempt.heartbeat_acknowledged(self.phase, sent_us)

    def take(self, stream: Stream, data: bytes) -> None:
        """What the process writes is in the spool at once."""
        if self.end is None:
            self._machine.disk.of(self.key, stream).data.extend(data)
            self._keeper.say(self.key, self._offsets())

    def leader_exited(self, status: ExitStatus) -> None:
        assert self.process is not None
        self._status = status
        self._exited_us = self._machine.boottime_us()
        lingers = self.process.plan.lingers_seconds
        self._ending = Ending(
            drain_since_us=self._exited_us, output_is_open=True, spool_is_full=False, processes_remain=True
        )
        if lingers:
            self._machine.world.after(lingers, self._reconsider, False)
        self._reconsider(output_is_open=lingers > 0)

    def not_run(self) -> None:
        self._finish(
            AttemptEnd(
                status=ExitCode(code=127),
                output_ends=Offsets(),
                started_us=self.started_us,
                ended_us=self.started_us,
                failure=LaunchFailure.COMMAND_NOT_FOUND,
            )
        )

    def _reconsider(self, output_is_open: bool = True) -> None:
        """A stray descendant holds the pipe for a while."""
        if self._ending is None or self.end is not None or not self._keeper.is_alive:
            return
        now_us = self._machine.boottime_us()
        self._ending = observe(
            self._ending,
            output_is_open=output_is_open,
            spool_is_full=False,
            processes_remain=False,
            now_us=now_us,
        )
        step = next_step_of_ending(self._ending, now_us)
        if isinstance(step, Finish):
            self._finish(
                AttemptEnd(
                    status=self._status,
                    output_ends=self._offsets(),
                    started_us=self.started_us,
                    ended_us=self._exited_us,
                    stop_cause=attempt.stop_cause(self.phase),
                    streams_cut=(Stream.STDOUT,) if output_is_open else (),
                )
            )
        else:
            self._come_back(step.until_us)

    def _finish(self, end: AttemptEnd) -> None:
        self.end = end
        if end.stop_cause is StopCause.FENCED:
            self._machine.world.met.add("a fence that ended an attempt")
        self._machine.disk.records[self.key].end = end
        self._keeper.say(self.key, end)

    def _carry_out(self, action: attempt.Action) -> None:
        assert self.process is not None
        if isinstance(action, SendTerm):
            self._machine.world.note("{}: SIGTERM to {}: {}", self._machine.name, self.key, action.cause.value)
            self.process.term()
        elif isinstance(action, SendKill):
            self._machine.world.note("{}: SIGKILL to {}: {}", self._machine.name, self.key, action.cause.value)
            self.process.kill()
        if self._ending is None:
            following = attempt.next_action(self.phase, self._machine.boottime_us())
            until = following.until_us if isinstance(following, Wait) else self._machine.boottime_us()
            self._come_back(until)

    def _come_back(self, until_us: int | None) -> None:
        self._timer += 1
        if until_us is not None:
            self._machine.at_boottime(until_us, self._wake, self._timer)

    def _wake(self, timer: int) -> None:
        if timer == self._timer and self._keeper.is_alive and self.end is None:
            self.act()

    def _offsets(self) -> Offsets:
        return self._machine.disk.ends(self.key)


class Keeper:
    """Launches, limits and ends attempts; goes on without its agent."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.id = f"{machine.name}-keeper-{number}"
        self.is_alive = True
        self.attempts: dict[RankKey, Kept] = {}
        self._newest_heartbeat_us = 0

    def launch(self, asked: Launch, devices: Mapping[str, int], cpus: int) -> tuple[AttemptView | Refusal, bool]:
        """Start what this machine has never seen; answers whether it was known."""
        known = self.machine.known(asked.key)
        if adoption.decide_launch(known.phase if known else None) is LaunchDecision.ANSWER and known is not None:
            return known, True
        refusal = launch.refusal_of_launch(asked, self.machine.boottime_us())
        if refusal is None and Plan.of(asked.process.argv).trouble == "no folder":
            refusal = Refusal(RefusalReason.CWD_MISSING, "there is no such folder")
        if refusal is not None:
            return refusal, False
        disk = self.machine.disk
        disk.records[asked.key] = AttemptRecord(
            asked.key, self.id, self.machine.boot, self.machine.boottime_us(), asked.note
        )
        if Plan.of(asked.process.argv).trouble == "no command":
            kept = self.attempts[asked.key] = Kept(self, asked, None)
            kept.not_run()
            return kept.view(), False
        process = self.machine.make_process(self.machine, asked, devices, cpus)
        kept = self.attempts[asked.key] = Kept(self, asked, process)
        kept.heartbeat_acknowledged(self._newest_heartbeat_us)
        self.machine.processes[asked.key] = process
        self.machine.world.checks.process_begins(process)
        process.begin()
        kept.act()
        return kept.view(), False

    def set_fence(self, sent_us: int) -> None:
        self._newest_heartbeat_us = max(self._newest_heartbeat_us, sent_us)
        for kept in self.attempts.values():
            kept.heartbeat_acknowledged(sent_us)

    def forget(self, key: RankKey) -> None:
        kept = self.attempts.get(key)
        if kept is not None and kept.end is not None:
            del self.attempts[key]
            self.machine.disk.bury(key)

    def say(self, key: RankKey, change: AttemptEnd | Offsets) -> None:
        """Tell the agent, if there is one; another will ask."""
        agent = self.machine.agent
        if agent is not None:
            self.machine.world.after(0.0003, agent.changed, self, key, change)


@dataclass(slots=True)
class Machine:
    """A node's machine. `rate` is how fast its clock runs against the scheduler's."""

    world: World
    name: str
    info: node_pb2.NodeInfo
    rate: float
    disk: NodeDisk
    boot: int = 1
    is_up: bool = True
    is_gone: bool = False
    keepers: int = 0
    keeper: Keeper | None = None
    agent: Agent | None = None
    processes: dict[RankKey, Process] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    hot: set[str] = field(default_factory=set)
    devices: tuple[node_pb2.Device, ...] = ()
    make_process: ProcessMaker = Process
    booted_at: float = 0.0

    @classmethod
    def made(
        cls, world: World, name: str, *, gpus: int, cpus: int, rate: float, is_virtual: bool, owner: str = ""
    ) -> Machine:
        """A machine with devices of 16 GB. Virtual ones have no samples. With an owner it takes nobody else's jobs."""
        devices = [
            node_pb2.Device(
                uuid=f"{name}-gpu{index}", index=index, name="GPU", memory_bytes=16 * 10**9, is_virtual=is_virtual
            )
            for index in range(gpus)
        ]
        info = node_pb2.NodeInfo(hostname=name, cpus=cpus, memory_bytes=64 * 10**9, devices=devices)
        if owner:
            info.job_accounts.CopyFrom(node_pb2.JobAccounts(runs_as=node_pb2.RUNS_AS_OWNER, owner=owner))
        disk = NodeDisk(agent_id=f"agent-{name}")
        return cls(world=world, name=name, info=info, rate=rate, disk=disk, devices=tuple(devices))

    def find_devices(self, *, but: str = "") -> None:
        """What the next start of the agent finds: all devices, or all but this one, with other indices then."""
        found = [device for device in self.devices if device.uuid != but]
        told = [node_pb2.Device.FromString(device.SerializeToString()) for device in found]
        for index, device in enumerate(told):
            device.index = index
        info = node_pb2.NodeInfo.FromString(self.info.SerializeToString())
        del info.devices[:]
        info.devices.extend(told)
        self.info = info

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boot}"

    def boottime_us(self) -> int:
        return BOOTTIME_AT_START_US + round((self.world.now - self.booted_at) * self.rate * 1e6)

    def at_boottime(self, at_us: int, call: Callable[..., None], *arguments: object) -> None:
        """When the machine's own clock shows this time, or a moment later, never before."""
        when = self.booted_at + (at_us - BOOTTIME_AT_START_US + 1) / 1e6 / self.rate
        self.world.at(max(when, self.world.now), call, *arguments)

    def kept(self, process: Process) -> Kept | None:
        """The living keeper's hold on a process."""
        keeper = self.keeper
        kept = keeper.attempts.get(process.key) if keeper is not None and keeper.is_alive else None
        return kept if kept is not None and kept.process is process else None

    def objection(self, key: RankKey, argv: tuple[str, ...]) -> Objection | None:
        """What speaks against starting a rank of a gang that is being prepared."""
        trouble: dict[str, Objection] = {
            "no folder": Refusal(RefusalReason.CWD_MISSING, "there is no such folder"),
            "no command": NotRun(LaunchFailure.COMMAND_NOT_FOUND, "there is no such command"),
        }
        return self.known(key) or trouble.get(Plan.of(argv).trouble)

    def known(self, key: RankKey) -> AttemptView | None:
        """What this machine knows of an attempt, in memory or on its disk."""
        kept = self.keeper.attempts.get(key) if self.keeper is not None and self.keeper.is_alive else None
        if kept is not None:
            return kept.view()
        if key in self.disk.tombstones:
            return self._view_of(self.disk.tombstones[key], AttemptPhase.FORGOTTEN)
        record = self.disk.records.get(key)
        if record is None:
            return None
        if record.end is None:
            return self._view_of(record, AttemptPhase.RUNNING)
        return self._view_of(record, AttemptPhase.ENDED if record.end.loss is None else AttemptPhase.LOST)

    def _view_of(self, record: AttemptRecord, phase: AttemptPhase) -> AttemptView:
        return AttemptView(
            key=record.key,
            phase=phase,
            keeper_id=record.keeper_id,
            directory=str(record.key),
            started_us=record.started_us if record.boot == self.boot else 0,
            stop_cause=record.end.stop_cause if record.end is not None else None,
            output_starts=self.disk.starts(record.key),
            output_ends=record.end.output_ends if record.end is not None else Offsets(),
            note=record.note,
            end=record.end,
        )

    def forgotten(self) -> tuple[AttemptView, ...]:
        """Attempts of which only tombstones are left, the newest first."""
        buried = reversed(self.disk.tombstones.values())
        return tuple(self._view_of(record, AttemptPhase.FORGOTTEN) for record in buried)

    def settle(self) -> tuple[AttemptView, ...]:
        """What an agent does with the records on its disk when it starts or sees its keeper die; then there is one."""
        views: list[AttemptView] = []
        for key, record in sorted(self.disk.records.items()):
            is_kept = self.keeper is not None and self.keeper.is_alive and self.keeper.id == record.keeper_id
            fate = adoption.fate_of_record(
                keeper_is_alive=is_kept, is_this_boot=record.boot == self.boot, has_end=record.end is not None
            )
            if fate is RecordFate.KILL:
                self._kill_leftovers(key)
            loss = adoption.loss_of(fate)
            if loss is not None and (record.end is None or record.end.loss is None):
                # After a reboot nobody knows which of the spooled bytes had reached the disk.
                ends = self.disk.ends(key) if fate is RecordFate.KILL else Offsets()
                record.end = AttemptEnd(status=None, output_ends=ends, started_us=record.started_us, loss=loss)
            view = self.known(key)
            assert view is not None
            views.append(view)
        if self.keeper is None or not self.keeper.is_alive:
            self.keepers += 1
            self.keeper = Keeper(self, self.keepers)
        return tuple(views)

    def forget(self, key: RankKey) -> None:
        """A keeper's attempt is forgotten by it; what a dead one left is buried by the agent."""
        if self.keeper is not None and key in self.keeper.attempts:
            self.keeper.forget(key)
        elif key in self.disk.records:
            self.disk.bury(key)

    def _kill_leftovers(self, key: RankKey) -> None:
        process = self.processes.get(key)
        if process is not None:
            process.kill_and_wait()

    # --- faults

    def crash_keeper(self) -> None:
        """Its jobs go on without anybody who reads what they write, until the agent has killed them."""
        if self.keeper is not None and self.keeper.is_alive and self.agent is not None:
            self.world.note("{}: the keeper dies", self.name)
            self.keeper.is_alive = False
            self.world.after(0.005, self.agent.keeper_died, self.keeper)

    def crash_agent(self) -> None:
        """Never while it is clearing up after its keeper: a fence holds as long as one of the two lives."""
        if self.agent is not None and (self.keeper is None or self.keeper.is_alive or not self.is_up):
            self.world.note("{}: the agent dies", self.name)
            self.agent.die()
            self.agent = None

    def power_off(self) -> None:
        """Everything that runs is gone at once."""
        if not self.is_up:
            return
        self.world.note("{}: the machine goes down", self.name)
        self.is_up = False
        self.crash_agent()
        if self.keeper is not None:
            self.keeper.is_alive = False
            self.keeper = None
        for process in self.processes.values():
            process.vanish()
        self.disk.power_cut(self.world.rng(f"power cut {self.name} {self.boot}"))

    def power_on(self) -> None:
        if self.is_up or self.is_gone:
            return
        self.is_up = True
        self.boot += 1
        self.booted_at = self.world.now
        self.world.note("{}: the machine starts, boot {}", self.name, self.boot)
        self.start_agent()

    def start_agent(self) -> None:
        if self.is_up and self.agent is None:
            from tests.simulation.agent import Agent

            self.agent = Agent(self)
