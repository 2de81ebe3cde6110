"""No field of what the scheduler and its nodes tell each other is dropped in silence, in either direction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from gpufleet.v1 import job_pb2, node_agent_pb2, node_pb2

from gpufleet.config.agent_settings import IsolationSettings
from gpufleet.devices.device import Device, DeviceSample, Vendor
from gpufleet.jobs.runs import JobId, RankKey
from node_agent import wire
from node_agent.control_groups.finding import GroupFacts
from node_agent.core.commands import LaunchAttempt, PrepareAttempt
from node_agent.core.launch import ControlGroup, InputFile, InputFolder, Isolation, JobInput, Launch, Mount
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, LossReason, Offsets, Stream
from node_agent.isolation.limits import Limiting
from node_agent.keeper.values import end_from, launch_from, launch_to, to_json, view_from
from node_agent.launch import Launcher
from node_agent.machine import device_to_proto, sample_to_proto
from scheduler.api.fleet.agents import AgentService
from scheduler.api.roles import Caller, _caller
from scheduler.links import AgentStream, OpenCheck
from scheduler.state import commands
from scheduler.state.access import Role
from scheduler.state.gap import HistoryGap
from scheduler.state.ids import NodeName, TokenId, UserName
from scheduler.state.units import Instant
from scheduler.wire.convert_commands import command_proto
from scheduler.wire.convert_nodes import info_proto
from scheduler.wire.validate_reports import node_info
from tests.fields.filled import Needs, alone, changes, paths, unheard, unsaid
from tests.store.stored_format import example

NVIDIA = Vendor.NVIDIA
NOW = Instant(1_700_000_000_000_000)

# --- down: the scheduler's command, the message, the agent's command, the keeper's launch


def heard(command: commands.Command) -> object:
    """What an agent makes of a command."""
    if isinstance(command, commands.LaunchAttempt):  # else it looks for no free memory
        resources = replace(command.spec.resources, ignores_telemetry=False)
        command = replace(command, spec=replace(command.spec, resources=resources))
    return wire.command_from_proto(command_proto(command))


COMMANDS: dict[type[Any], Mapping[str, str]] = {
    commands.LaunchAttempt: {
        "spec": "field by field in test_job_fields.py",
        "placement.node": "the node is told by its own stream",
        "placement.agent_id": "the scheduler's own: of which agent it decided",
        "placement.boot_id": "the scheduler's own",
        "placement.method": "for people",
        "placement.devices.index": "a node knows its devices by UUID",
        "placement.devices.name": "a node knows its devices by UUID",
        "placement.devices.memory_free_bytes": "for people: why it was chosen",
        "placement.devices.utilization_percent": "for people: why it was chosen",
        "placement.devices.score": "for people: why it was chosen",
        "submitted_at": "within the origin, which the link adds: tests/store/test_origins.py",
        "placed_at": "within the origin",
    },
    commands.TellWarning: {
        "warning.at": "the node tells of it when it comes",
        "warning.attempt": "the key says it",
        "warning.about": "the scheduler's own: of which device it was told",
    },
}
"""What is not told, and why; of every command the node is the stream that it goes to."""


@pytest.mark.parametrize("cls", [cls for cls in get_args(commands.Command) if cls is not commands.PrepareAttempt])
def test_every_field_of_a_command_reaches_the_agent(cls: type[Any]) -> None:
    node = {} if cls is commands.LaunchAttempt else {"node": "the stream that it goes to"}
    assert not unsaid(heard, cls, exceptions={**node, **COMMANDS.get(cls, {})})


def test_what_is_prepared_is_the_launch_itself() -> None:
    launch = example(commands.LaunchAttempt, 0)
    by_itself = wire.command_from_proto(command_proto(launch))
    assert isinstance(by_itself, LaunchAttempt)
    assert wire.command_from_proto(command_proto(commands.PrepareAttempt(launch=launch))) == PrepareAttempt(by_itself)


KEY = {"key.job_id": 1, "key.attempt": 1}
BY_THE_LINK = {
    "term": "checked by the link, which refuses an older one",
    "sequence": "counted by the link",
    "acked_sequence": "what was acknowledged is forgotten by the link",
    "newest_heartbeat": "the link judges by it how old a command is",
    "store_position": "kept by the link, as it is (tests/node_agent/test_store_position.py)",
}


def test_every_field_of_a_message_down_reaches_the_agents_command() -> None:
    descriptor = node_agent_pb2.HeartbeatResponse.DESCRIPTOR
    needs: Needs = {}
    for path in paths(descriptor):
        name = path.partition(".")[0]
        keyed = descriptor.fields_by_name[name].message_type
        if keyed is not None and any(each.name == "key" for each in keyed.fields):
            needs = {**needs, path: {f"{name}.{part}": number for part, number in KEY.items()}}
        elif name == "prepare":
            needs = {**needs, path: {f"prepare.launch.{part}": number for part, number in KEY.items()}}
    for holder in ("launch.", "prepare.launch."):
        path = f"{holder}image_credentials"
        needs = {**needs, path: {**needs[path], f"{holder}container.image": "busybox"}}
        slot = {f"{holder}{part.replace('key', 'slot')}": number for part, number in KEY.items()}
        needs = {**needs, **{path: {**needs[path], **slot} for path in needs if path.startswith(f"{holder}slot.")}}
    exceptions = {
        **BY_THE_LINK,
        **{f"open_exec.start.{name}": "the key beside it says so" for name in ("job_id", "rank")},
        **{
            f"{holder}container.image_secret": "the agent is told what it holds"
            for holder in ("launch.", "prepare.launch.")
        },
        **{
            f"{holder}inputs.array_index": "the scheduler tells the id of the item"
            for holder in ("launch.", "prepare.launch.")
        },
        **{
            f"{holder}share.profile": "not built: a share with a profile is refused when it is submitted"
            for holder in ("launch.", "prepare.launch.")
        },
    }
    assert not unheard(wire.command_from_proto, node_agent_pb2.HeartbeatResponse(), needs=needs, exceptions=exceptions)


class OneMachine:
    """A machine with the devices that are asked for."""

    def __init__(self) -> None:
        uuids = ("device_uuids", "another")
        self.devices = {each: Device(uuid=each, index=0, name="GPU", vendor=NVIDIA, memory_bytes=1) for each in uuids}


def completed(command: LaunchAttempt) -> Launch:
    """The launch that the agent makes of a command."""
    launcher = Launcher(
        cast(Any, OneMachine()),
        live=lambda: (),
        spool_bytes=lambda: 1,
        for_workers=lambda: {"WAY": "up"},
        limiting=Limiting(
            IsolationSettings(), isolates=True, find=lambda: GroupFacts(version=2, folders={"memory": "/", "cpu": "/"})
        ),
    )
    command = replace(command, serves="" if command.serves == "another" else command.serves)  # of two models it is one
    launch = launcher.complete(command, None, heartbeat_sent_us=1, traceparent=command.trace_context)
    env = {
        name: value for name, value in launch.process.env.items() if name not in ("MASTER_PORT", "GPUFLEET_END_TIME")
    }
    return replace(launch, process=replace(launch.process, env=env))


def test_every_field_of_a_launch_reaches_the_keeper() -> None:
    exceptions = {
        "expectations.memory_free_bytes": "checked by the agent before the keeper is asked",
        "expectations.allow_busy": "checked by the agent before the keeper is asked",
        "user": "says as whom the job runs, where the node isolates jobs, and goes no further",
        **dict.fromkeys(
            (
                *("process.isolation?", *(f"process.isolation.{each.name}" for each in fields(Isolation))),
                *("process.group?", "process.group.folders{}"),
                *(f"process.group.{each.name}" for each in fields(ControlGroup) if each.name != "folders"),
            ),
            "the agent's own to say, which no command has",
        ),
        **dict.fromkeys(
            (
                *("container.image", "container.credentials"),
                *(f"container.mounts.{each.name}" for each in fields(Mount)),
            ),
            "the agent makes it itself",
        ),
        "is_gang": "the agent waits for Start itself",
        "notify": "the agent tells itself",
        "results": "the agent brings them itself",
        "keep": "the agent brings it itself",
        **dict.fromkeys(tuple(f"inputs.{each.name}" for each in fields(JobInput)), "the agent lays them out itself"),
        "secret_variables": "what the agent itself keeps out of what it writes down",
        **dict.fromkeys(tuple(f"files.{each.name}" for each in fields(InputFile)), "the agent lays them out itself"),
        **dict.fromkeys(("environment?", "environment.tool", "environment.what"), "the agent has it made itself"),
        **dict.fromkeys(
            ("folder?", *(f"folder.{each.name}" for each in fields(InputFolder))), "the agent lays it out itself"
        ),
        **dict.fromkeys(
            ("kept?", *(f"kept.{each.name}" for each in fields(InputFolder))), "the agent lays it out itself"
        ),
    }
    assert not unsaid(completed, LaunchAttempt, exceptions=exceptions)


@pytest.mark.parametrize(
    ("cls", "write", "read"),
    [(Launch, launch_to, launch_from), (AttemptEnd, to_json, end_from), (AttemptView, to_json, view_from)],
)
def test_what_agent_and_keeper_tell_each_other_comes_back_as_it_was(cls: type[Any], write: Any, read: Any) -> None:
    for path, *values in changes(cls):
        for value in values:
            again = read(json.loads(json.dumps(write(value))))
            assert again == value, path
            assert repr(again) == repr(value), path  # a text equals the member of an enum that it names, and is none


# --- up: what agents report


class Reports:
    """Keeps the events that an agent's messages become."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.kept: list[object] = []
        service: type[Any] = AgentService
        self.service: Any = object.__new__(service)
        limits = SimpleNamespace(warnings=SimpleNamespace(memory_span=1), heartbeat_interval=1, node_lease=1)
        durable = SimpleNamespace(
            nodes={"n1": SimpleNamespace(agent_id="a")},
            hold=lambda node: SimpleNamespace(ranks=All()),
            gap=HistoryGap(at=NOW, reason="the database is older", jobs_below=JobId(1)),
        )
        live = SimpleNamespace(nodes={})
        self.service._engine = SimpleNamespace(
            now=lambda: NOW,
            request=self.report,
            report=self.report,
            view=SimpleNamespace(limits=limits, durable=durable, live=live),
            store=SimpleNamespace(term=1),
        )
        self.service._origins = SimpleNamespace(read=lambda text, key, node: text or None)
        self.service._told = {}
        self.service._version = "1"
        self.service._reports = set()
        self.service._links = SimpleNamespace(beat_listeners=())
        self.service._outputs = SimpleNamespace(await_end=lambda *what: self.kept.append(what))
        self.service._failures = SimpleNamespace(keep=lambda stream, sequence, told: self.kept.append(str(told)))
        self.service._record_beat = lambda node, readings: self.kept.extend(readings)
        self.service._keep_series = lambda key, payload: self.kept.append((key, payload))

    def report(self, event: object) -> asyncio.Future[Any]:
        self.events.append(event)
        future = asyncio.get_running_loop().create_future()
        future.set_result(object())
        return future


class All:
    def __contains__(self, key: object) -> bool:
        return True


def taken(request: node_agent_pb2.HeartbeatRequest) -> object:
    """What the scheduler makes of a message up."""

    async def take() -> object:
        reports = Reports()
        connection = AgentStream(NodeName("n1"), 1, 1)
        log = asyncio.Queue[Any](1)
        connection.logs[2] = log
        checked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection.checks[2] = OpenCheck(UserName("ada"), "", checked)
        if request.WhichOneof("body") == "inventory":
            await reports.service._take_inventory(request, connection)
        else:
            reports.service._take(request, connection)
        said = checked.result() if checked.done() else None
        return reports.events, reports.kept, None if log.empty() else log.get_nowait(), said

    return asyncio.run(take())


EXITED = {"inventory.entries.phase": node_agent_pb2.ATTEMPT_PHASE_EXITED}
RUNNING = {"inventory.entries.phase": node_agent_pb2.ATTEMPT_PHASE_RUNNING}
REFUSED = {"inventory.entries.phase": node_agent_pb2.ATTEMPT_PHASE_REFUSED}
SUMMARY_OF_DEVICE = "a summary of readings: a row a counter, with all that it says"


def needs_of(path: str) -> dict[str, Any]:
    """What else a message up must say so that a field of it says something."""
    needs: dict[str, Any] = {}
    if path.startswith("inventory."):
        needs |= {"inventory.info.cpus": 1, "inventory.boot_id": "b"}
    if path.startswith("inventory.entries."):
        needs |= {f"inventory.entries.{part}": number for part, number in KEY.items()}
        needs |= RUNNING if not path.startswith("inventory.entries.exited") else EXITED
        needs |= REFUSED if path == "inventory.entries.refusal_kind" else {}
    for holder in ("inventory.entries.exited.", "attempt_exited."):
        if path.startswith(holder):
            needs |= {f"{holder}{part}": number for part, number in KEY.items()}
            if f"{holder}output_ends." in path:
                needs |= {f"{holder}output_ends.stream": job_pb2.STREAM_STDOUT}
    for holder in ("attempt_started.", "launch_refused.", "spool_state.", "setup_state.", "rank_ready."):
        if path.startswith(holder):
            needs |= {f"{holder}{part}": number for part, number in KEY.items()}
    if ".usage.devices.series." in path:
        needs |= {path.rpartition(".")[0] + ".offset_ms": [1]}
    if path.endswith((".min", ".max", ".mean", ".last")):
        needs |= {path.rpartition(".")[0] + ".count": 1}
    for holder in ("beat.usages.", "beat.preparations."):
        if path.startswith(holder):
            needs |= {f"{holder}{part}": number for part, number in KEY.items()}
    if path in ("program_log.data", "program_log.is_last", "program_log.total_bytes"):
        needs |= {"program_log.request": 2}
    if path.startswith("files_checked.") and path != "files_checked.request":
        needs |= {"files_checked.request": 2}
    if path.endswith("file_runs.count"):
        needs |= {path.removesuffix("count") + "way": job_pb2.FILE_WAY_CACHE}
    if path.endswith("file_runs.way"):
        needs |= {path.removesuffix("way") + "count": 1}
    if "info.devices." in path:
        needs |= {"inventory.info.devices.uuid": "u"}
    return needs


def test_every_field_of_a_message_up_reaches_the_core() -> None:
    descriptor = node_agent_pb2.HeartbeatRequest.DESCRIPTOR
    base = node_agent_pb2.HeartbeatRequest(node="n1", incarnation=1, sequence=1)
    known = list(paths(descriptor))
    needs = {path: needs_of(path) for path in known}
    of_ends = [path for path in known if "exited.usage." in path]
    not_taken = {path: "the end names the rank" for path in of_ends if ".usage.key." in path}
    not_taken |= {path: "of an end no newest reading is kept" for path in of_ends if path.endswith(".last")}
    assert not unheard(taken, base, needs=needs, exceptions={**NOT_TAKEN, **not_taken})


NOT_TAKEN = {
    "node": "of the stream's first message, which says whose stream it is",
    "incarnation": "of the inventory",
    "sequence": "of the inventory, and of what is acknowledged",
    "acked_sequence": "the link counts itself what it sent",
    "inventory.entries.exited.key.job_id": "the entry names the rank",
    "inventory.entries.exited.key.attempt": "the entry names the rank",
    "inventory.entries.exited.key.rank": "the entry names the rank",
    "inventory.entries.exited.key.lineage": "the entry names the rank",
    "inventory.entries.exited.output_ends.rank": "the entry names the rank",
    "inventory.info.devices.is_healthy": "told by each sample",
    "inventory.info.devices.unhealthy_reason": "told by each sample",
    "inventory.info.expires_time": "elastic nodes are not built",
    "attempt_started.pid": "for who looks at the messages: it names nothing beyond its node",
    "attempt_exited.output_ends.rank": "the report names the rank",
}
"""What the scheduler makes nothing of, and why."""


def test_what_an_agent_says_of_its_machine_is_shown() -> None:
    base = node_pb2.NodeInfo(cpus=1)
    needs = {path: {"devices.uuid": "u"} for path in paths(base.DESCRIPTOR) if path.startswith("devices.")}
    not_shown = {
        "devices.is_healthy": "shown as the samples say it",
        "devices.unhealthy_reason": "shown as the samples say it",
        "expires_time": "elastic nodes are not built",
    }
    assert not unheard(node_info, base, needs=needs, exceptions=not_shown)
    assert not unheard(lambda info: info_proto(node_info(info)), base, needs=needs, exceptions=not_shown)


@pytest.mark.parametrize(
    "name",
    [
        "agent_id",
        "boot_id",
        "node",
        "incarnation",
        "info.hostname",
        "takes_credential",
        "knows_lineages",
        "keeps_backlog",
    ],
)
def test_what_an_agent_registers_with_reaches_the_core(name: str) -> None:
    def registered(request: node_agent_pb2.RegisterRequest) -> object:
        async def register() -> object:
            reports = Reports()
            _caller.set(Caller(user=UserName("agents"), role=Role.AGENT, token=TokenId("a")))
            context = SimpleNamespace(peer=lambda: "ipv4:10.0.0.1:1")
            with suppress(AssertionError):  # the answer is none of a core
                await AgentService.Register.__wrapped__(reports.service, request, context)  # type: ignore[attr-defined]
            return reports.events

        return asyncio.run(register())

    base = node_agent_pb2.RegisterRequest(node="n1", agent_id="a", boot_id="b", incarnation=1, protocol_version=1)
    base.info.cpus = 1
    without, told = alone(base, name)
    assert registered(without) != registered(told)


def test_every_field_of_a_registration_is_looked_at() -> None:
    known = {path.partition(".")[0] for path in paths(node_agent_pb2.RegisterRequest.DESCRIPTOR)}
    of_the_call = {"protocol_version", "takes_credential", "knows_lineages", "keeps_backlog"}
    of_the_call |= {"store_position", "store_id", "highest_term"}  # of the shell: tests/store/test_store_position.py
    assert known == {"agent_id", "boot_id", "node", "incarnation", "info"} | of_the_call


# --- up: what the agent makes of what it knows


def test_everything_that_was_read_of_a_device_is_told() -> None:
    def named(sample: DeviceSample) -> DeviceSample:
        names = {"attempt": "7.1.0", "another": "8.1.0", None: None}
        processes = sample.processes and tuple(replace(each, attempt=names[each.attempt]) for each in sample.processes)
        return replace(sample, processes=processes)

    exceptions = {"processes.is_compute": "told together with the owner, as is_foreign"}
    assert not unsaid(sample_to_proto, DeviceSample, exceptions=exceptions, prepare=named)


def test_every_fact_of_a_device_is_told() -> None:
    assert not unsaid(lambda device: device_to_proto(device, None), Device)


def test_everything_that_is_known_of_an_attempt_is_told() -> None:
    def told(view: AttemptView) -> object:
        running = replace(view, end=None)
        entries = [wire.inventory_to_proto([each], "b", node_pb2.NodeInfo(), 99) for each in (view, running)]
        return entries, wire.started_to_proto(view, 99), wire.spool_to_proto(view), *map(exited_of, [view])

    assert not unsaid(told, AttemptView, exceptions=NOT_TOLD)


def exited_of(view: AttemptView) -> object:
    return None if view.end is None else wire.exited_to_proto(view, 99)


def test_an_end_that_nobody_saw_and_lost_output_are_told() -> None:
    end = AttemptEnd(status=None, output_ends=Offsets(3, 4))
    view = AttemptView(key=RankKey(JobId(1), 1, 0), phase=AttemptPhase.ENDED, keeper_id="k", directory="/d", end=end)
    told = exited_of(view)
    for changed in (replace(end, loss=LossReason.KEEPER_DIED), replace(end, streams_lost=(Stream.STDOUT,))):
        assert exited_of(replace(view, end=changed)) != told


NOT_TOLD = {
    "phase": "that it has ended is told by its end",
    "keeper_id": "the node's own",
    "directory": "the node's own",
    "stop_cause?": "the end has the one that stands",
    "stop_cause": "the end has the one that stands",
    "output_starts": "the node's own: what is below is stored",
    "output_ends": "the output itself is sent; its end is told by the end",
    "note": "the node's own",
    "end.loss?": "here other words and lost output say as much; alone in the test above",
    "end.loss": "here other words and lost output say as much; alone in the test above",
    **dict.fromkeys(
        ("end.started_us", "end.ended_us"),
        "devices are held until the scheduler hears of the end, and counted so",
    ),
    "end.processes_left": "each sample of a device tells of the processes that are still on it",
}
