"""No field of a job is dropped in silence, from the option that asks for it to the process that it is for."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import fields
from datetime import datetime
from functools import cache

import pytest
from gpufleet.v1 import job_pb2, node_agent_pb2

from cli.render.job import request_lines
from cli.render.table import Look
from gpufleet.errors import GpufleetError
from gpufleet.fleet.submitting.job_options import JobOptions, OptionKind
from gpufleet.fleet.submitting.job_spec import PASSED_ON, command_line_of
from gpufleet.fleet.submitting.option_kinds import READ, SHOW
from gpufleet.fleet.submitting.requests import _option, in_options
from scheduler.api.jobs.arrays import show_items
from scheduler.core.gangs import launch_command
from scheduler.state.attempts import Attempt, PlacedDevice, Placement, Rank
from scheduler.state.durable import Durable
from scheduler.state.ids import DeviceUuid, NodeName, RankKey
from scheduler.state.jobs import Job
from scheduler.store.codec import Codec
from scheduler.wire.container import PASSED_ON as PASSED_ON_TO_CONTAINERS
from scheduler.wire.convert_commands import command_proto
from scheduler.wire.convert_jobs import job_proto
from scheduler.wire.groups.convert import show_group
from tests.fields.asked import BASE, LOCAL, NEEDS, VALUES, asked_with, fleet, job_of, parsed, put_groups
from tests.fields.filled import alone, get, paths, unheard

PATHS = list(paths(job_pb2.JobSpec.DESCRIPTOR))
OPTIONS = [each.name for each in fields(JobOptions) if each.name not in LOCAL]

OF_NO_OPTION = {
    "argv": "the command itself",
    "submit_cwd": "the folder that one stands in",
    "trace_context": "TRACEPARENT of the submitter, or a new one of the scheduler",
    "input": "gpuctl run -i, and gpuctl shell",
    "kind": "gpuctl serve makes services; everything else is a batch job",
    "serves": "the scheduler's own, of a service",
    "hidden_fields": "the scheduler's own, of somebody else's job",
    "devices.share.memory_bytes": "min_memory_bytes says the same, and --min-memory sets that",
    "devices.share.profile": "not built",
    "files.is_only_shared": "the scheduler's own, of what was not uploaded",
}
"""Fields that no option sets, and what does."""

NOT_REPEATED = {
    **{path: why for path, why in OF_NO_OPTION.items() if path not in ("argv", "input", "devices.share.memory_bytes")},
    "begin_time": "it is over when somebody submits the job again",
    "is_held": "whoever submits it again wants it to run",
}
"""What the line that submits a job again leaves out, and why."""

NOT_SHOWN_AS_ASKED = {
    "kind": "refused: the scheduler makes services itself",
    "serves": "refused: the scheduler makes services itself",
    "hidden_fields": "refused: only the job's owner can fill them in",
    "devices.share.profile": "refused: not built",
    "files.is_only_shared": "the scheduler's own, of what was not uploaded",
    "inputs.array_index": "shown by the id of the item",
    "devices.per_node_count": "shown only together with several nodes; with four GPUs, two on each, there are two",
}
"""What a job does not show as it was asked for, and why."""

THE_SCHEDULERS = {
    "files.is_only_shared": "not the submitter's to say; a node is told what the scheduler found",
    "inputs.array_index": "a node gets the id of the item",
    "devices.per_node_count": "it chose the devices",
    "devices.models": "it chose the devices",
    "pins.node": "it chose the devices",
    "pins.device_indices": "it chose the devices",
    "node_count": "it chose the nodes; the launch tells how many there are",
    "cpus": "the placement says what is held",
    "memory_bytes": "the placement says what is held",
    "nodelist": "it chose the node",
    "exclude": "it chose the node",
    "node_labels": "it chose the node",
    "no_span": "it chose the nodes",
    "band": "its order",
    "group": "its order and caps",
    "queue_timeout": "its queue",
    "retries": "its attempts",
    "requeue_on_timeout": "its attempts: it queues the job again when the node tells of the end",
    "is_preemptible": "its order",
    "after.job_id": "its queue",
    "after.condition": "its queue",
    "array.indices": "its items; each is told its own index",
    "array.max_active_count": "its items",
    "array.max_fails": "its items",
    "begin_time": "its queue",
    "is_held": "its queue",
    "labels": "for people and filters",
    "blame_limit": "its attempts",
    "no_warnings": "its warnings",
}
"""What no node is told, and why."""


@cache
def made(spec: bytes) -> Job:
    return asyncio.run(job_of(job_pb2.JobSpec.FromString(spec)))


def shown(job: Job) -> job_pb2.JobSpec:
    message = job_proto(job)
    durable = Durable()
    put_groups(durable)
    show_items(message, durable, job)
    show_group(message, durable, job)
    return message.spec


# --- what people type


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_in_the_spec(option: str) -> None:
    without, told = asked_with(option)
    assert without != told


def test_every_field_of_a_spec_has_an_option() -> None:
    asked = [asked_with(option)[1] for option in OPTIONS]
    set_by_one = {path for path in PATHS if any(get(told, path) for told in asked)}
    by_itself = {"argv", "submit_cwd"}
    assert set(PATHS) - set_by_one == OF_NO_OPTION.keys() - by_itself


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_named_where_its_field_is_refused(option: str) -> None:
    without, told = asked_with(option)
    flag = {"requeue": "--no-requeue", "env_all": "--env"}.get(option, f"--{option}")
    differing = [path for path in PATHS if get(told, path) != get(without, path)]
    assert flag.replace("_", "-") in {_option(f"specs[0].{_indexed(path)}") for path in differing}


def _indexed(path: str) -> str:
    """A path as the server writes it."""
    return path.replace("devices.", "devices[0].").replace("pins.", "pins[0].").replace("after.", "after[0].")


def test_every_kind_of_option_is_read_and_shown() -> None:
    assert READ.keys() == SHOW.keys() == set(OptionKind) - {OptionKind.OWN}


# --- what is shown of it, and submitted again


@pytest.mark.parametrize("path", [path for path in PATHS if path not in NOT_REPEATED])
def test_a_field_comes_back_from_the_line_that_submits_it_again(path: str) -> None:
    _, told = alone(BASE, path, VALUES, NEEDS)
    words = shlex.split(command_line_of(told))
    again = parsed(words)
    if words[:3] == ["gpuctl", "run", "-i"]:
        again.input = job_pb2.INPUT_MODE_PIPE  # as it does
    if path == "devices.share.memory_bytes":
        path, told.devices[0].min_memory_bytes = "devices.min_memory_bytes", told.devices[0].share.memory_bytes
    for name in PASSED_ON:  # of who submits it
        again.env.pop(name, None)
    assert get(again, path) == get(told, path)


def test_what_the_line_leaves_out_is_left_out() -> None:
    lines = {path: [command_line_of(each) for each in alone(BASE, path, VALUES, NEEDS)] for path in NOT_REPEATED}
    assert not [path for path, (without, told) in lines.items() if without != told]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_dry_run_shows_every_option(option: str) -> None:
    now, look = datetime.now().astimezone(), Look(width=None)
    without, told = asked_with(option)
    assert request_lines(told, now, look) != request_lines(without, now, look)


# --- wire, state, store


@pytest.mark.parametrize("path", [path for path in PATHS if path not in NOT_SHOWN_AS_ASKED])
def test_a_field_survives_wire_state_store_state_and_wire(path: str) -> None:
    _, told = alone(BASE, path, VALUES, NEEDS)
    job = made(told.SerializeToString())
    assert get(shown(job), path) == get(told, path)
    codec = Codec()
    assert get(shown(codec.decode(Job, codec.encode(job))), path) == get(told, path)


def test_gpus_of_each_node_are_kept_as_so_many_nodes() -> None:
    _, told = alone(BASE, "devices.per_node_count", VALUES, NEEDS)
    kept = shown(made(told.SerializeToString()))
    assert (kept.node_count, kept.devices[0].count, kept.devices[0].per_node_count) == (2, 4, 2)


# --- the node


PLACEMENT = Placement(
    node=NodeName("n1"),
    agent_id="agent-n1",
    boot_id="boot-1",
    devices=(PlacedDevice(index=0, uuid=DeviceUuid("n1-gpu0"), name="NVIDIA H100"),),
)


def launch_of(spec: job_pb2.JobSpec) -> node_agent_pb2.HeartbeatResponse:
    """What a node is told of a job that was placed there, wherever it would have been placed otherwise."""
    job = made(spec.SerializeToString())
    attempt = Attempt(number=1, ranks=(Rank(placement=PLACEMENT),), placed_at=job.submitted_at)
    return command_proto(launch_command(fleet().state, job, attempt, RankKey(job.id, 1, 0)))


SETTINGS = [each.name for each in job_pb2.ProcessSettings.DESCRIPTOR.fields]


@pytest.mark.parametrize("name", [each for each in SETTINGS if each not in PASSED_ON_TO_CONTAINERS])
def test_a_process_setting_that_no_container_receives_is_refused_beside_an_image(name: str) -> None:
    path = next(each for each in PATHS if each.startswith(f"process.{name}"))
    _, told = alone(BASE, path, VALUES, NEEDS)
    made(told.SerializeToString())
    told.container.image = "busybox"
    with pytest.raises(GpufleetError, match="does not go with a container") as refused:
        made(told.SerializeToString())
    assert refused.value.violations[0].field == f"specs[0].process.{name}"
    assert in_options(refused.value).violations[0].field.startswith("--")


def test_what_containers_are_passed_on_are_fields_of_the_settings() -> None:
    assert set(SETTINGS) >= PASSED_ON_TO_CONTAINERS


def test_every_field_reaches_the_nodes_launch_or_is_the_schedulers_alone() -> None:
    assert not unheard(launch_of, BASE, values=VALUES, needs=NEEDS, exceptions=THE_SCHEDULERS)
