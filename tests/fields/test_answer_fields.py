"""No field of what people ask of jobs, and of what they are shown, is dropped in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.jobs.bulk import holding, updating
from gpufleet.config.agent_settings import AgentSettings
from gpufleet.config.cli_settings import CliSettings
from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.config.merged import Resolved
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.config.settings import settings_of
from scheduler.api.jobs.actions import ChangeCalls
from scheduler.api.roles import Caller, _caller
from scheduler.policy.explain import Explanation
from scheduler.state.access import Role, Token
from scheduler.state.events import Event
from scheduler.state.ids import JobId, TokenId, UserName
from scheduler.state.jobs import Job
from scheduler.state.state import State
from scheduler.state.units import Instant
from scheduler.wire.convert import token_proto
from scheduler.wire.convert_jobs import explanation_proto, job_proto
from tests.fields.filled import alone, get, paths, unsaid
from tests.store.stored_format import example

# --- a job, as it is shown

ADDED = {
    "attempts.ranks.rank": "0 of a single rank",
    "attempts.gpu_info.devices.memory_free_mb": "0: the bytes here are fewer than a MB",
    "attempts.gpu_info.devices.share.profile": "not built",
    "attempts.is_unreachable": "set last, and absent of an attempt that has ended, which is the first here",
    "attempts.is_asked_back": "as is_unreachable",
    "attempts.missing_output_bytes": "added by who shows one job",
    "exit.code": "0 here",
    "group_is_removed": "added by show_group",
    "wait_reason.*": "added by the page's reasons",
    "queue_position": "given by the page, which counts",
    "estimated_start_time": "added by add_times",
    "latest_start_time": "added by add_times",
    "likely_*_start_time": "added by add_times",
    "bound_sentence": "added by add_times",
    "estimate_sentence": "added by add_times",
    "array_counts.*": "added by show_items",
    "array_index": "added with its array",
    "has_stats": "added by who shows one job",
    "setting_up": "added by who shows one job",
    "output_blocked": "added by who shows one job",
    "results.*": "added by who shows one job",
}
"""Fields of a job's message that are not set by its conversion, and why."""

NOT_SHOWN = {
    "*.placement.agent_id": "of which agent it was decided",
    "*.placement.boot_id": "of which start of the machine it was decided",
    "*.placement.devices.memory_free_bytes": "in MB, and the bytes here are fewer",
    "*.ranks.exit.is_forgotten": "it says that no results are awaited, which are shown",
    "*.ranks.exit.output_is_complete": "that of the whole attempt is shown",
    "*.ranks.exit.is_presumed": "its reason says it",
    "*.ranks.exit.is_blameless": "for the rules",
    "*.ranks.exit.use*": "GetJobStats shows it",
    "*.attempt.kept.*": "the copies of its job are shown, and its story says which attempt began with what",
    "kept.folder.digest": "for the node",
    "kept.folder.size_bytes": "for the node",
    "spec.inputs.item_count": "follows from the job that it names",
    "spec.inputs.is_of_admin": "for the scheduler, when the files are laid out",
    "spec.resources.in_container": "its container is shown",
    "falls_back_after*": "when it falls back is shown",
    "spec.resources.disk_bytes": "its files are shown",
    "spec.resources.kept_away*": "why it waits says so",
    "group": "its name is shown: wire/groups/convert.py",
    "*.rendezvous*": "for the ranks themselves",
    "*.slot.rank": "0 always: no gang waits in a backlog",
    "*.slot.lineage": "that of the attempt which is named, and shown with it",
    "*forecast*": "for what is learned of waits",
    "*.deciding_rank": "chooses the exit that is shown, and there is one here",
    "state.Running.started_at": "that of the ranks is shown",
    "state.Stopping.[!a]*": "told by the end, and by the story",
    "state.Divided.rest?": "its items are counted",
    "node_loss_count": "for the rules",
    "blameless_loss_count": "for the rules",
    "time_out_count": "for the rules",
    "told_with*": "for the story of a submit",
    "eligible_at*": "for the order",
    "unmet.*": "the wait reason says it",
    "begins_at*": "the spec has it, and the wait reason says it",
    "waits_since*": "for the order",
    "items*": "added by show_items",
    "drained_at*": "for the rules of workers",
    "warnings.about": "of which device, for telling it once",
    "spec.gpu_choice.wanted*": "what is asked for, which is what the spec shows",
    "spec.resources.shared_root": "that of its files, which the spec shows",
    "spec.gpu_choice.wait*": "when it falls back is shown, of one that waits",
}
"""Fields of a job's state that its message does not say, and why."""


def one_decides(job: Job) -> Job:
    """An example has one rank, which is the first; and it does without none of what it asks for."""
    choice = job.spec.gpu_choice
    if choice is not None:
        job = replace(job, spec=replace(job.spec, gpu_choice=replace(choice, wanted=job.spec.resources)))
    return replace(job, past=tuple(replace(each, deciding_rank=0) for each in job.past))


def test_every_field_of_a_jobs_message_is_set() -> None:
    shown = [job_proto(one_decides(example(Job, variant))) for variant in range(10)]
    never = [path for path in paths(job_pb2.Job.DESCRIPTOR) if not any(get(each, path) for each in shown)]
    never = [path for path in never if not path.startswith("spec.")]  # see test_job_fields.py
    assert [path for path in never if not any(fnmatchcase(path, each) for each in ADDED)] == []
    assert [each for each in ADDED if not any(fnmatchcase(path, each) for path in never)] == []


def test_everything_that_is_known_of_a_job_is_shown() -> None:
    assert not unsaid(job_proto, Job, exceptions=NOT_SHOWN, prepare=one_decides)


def test_every_part_of_an_explanation_is_shown() -> None:
    exceptions = {
        "nodes.miss.is_lasting": "for finding the nearest change",
        "nodes.miss.nearness": "for the order of nodes",
    }
    assert not unsaid(explanation_proto, Explanation, exceptions=exceptions)


def test_everything_of_a_token_but_its_secret_is_shown() -> None:
    def stored(token: Token) -> Token:
        return replace(token, role=Role.USER if token.role is Role.JOB else token.role)  # that of a job is never stored

    exceptions = {
        "digest": "the hash of its secret",
        "former_digest": "the hash of the secret before",
        "revoked_at": "that it is revoked is shown, and not when",
    }
    assert not unsaid(token_proto, Token, exceptions=exceptions, prepare=stored)


# --- a job that is changed


def changed(request: scheduler_pb2.UpdateJobRequest) -> object:
    """The event that a change becomes, and for which jobs."""
    events: list[object] = []
    calls: Any = object.__new__(ChangeCalls)
    calls.engine = SimpleNamespace(view=State(), now=lambda: Instant(0))

    async def change(selector: scheduler_pb2.JobSelector, event: Callable[[tuple[JobId, ...]], Event]) -> list[Any]:
        events.extend((event((JobId(1),)), selector))
        return []

    calls._change = change
    _caller.set(Caller(UserName("ada"), Role.ADMIN, TokenId("t")))
    asyncio.run(ChangeCalls.UpdateJob.__wrapped__(calls, request))  # type: ignore[attr-defined]
    return events


@pytest.mark.parametrize("path", list(paths(scheduler_pb2.UpdateJobRequest.DESCRIPTOR)))
def test_every_field_of_a_change_reaches_the_core(path: str) -> None:
    mask = FieldMask(paths=["name" if path.startswith("jobs.") or path == "update_mask.paths" else path])
    base = scheduler_pb2.UpdateJobRequest(update_mask=mask, name="mine")
    if path == "update_mask.paths":
        without, told = alone(base, path, {path: ["name", "time_limit"]})
    else:
        without, told = alone(base, path, {}, {path: {"band": job_pb2.BAND_LOW}} if path == "band" else {})
    assert changed(without) != changed(told)


def test_every_change_can_be_typed() -> None:
    selector = scheduler_pb2.JobSelector(job_ids=[1])
    typed = [updating("1h", "mine", "high").request(selector), holding("hold", is_held=True).request(selector)]
    known = {path.partition(".")[0] for path in paths(scheduler_pb2.UpdateJobRequest.DESCRIPTOR)}
    assert {field.name for each in typed for field, _ in each.ListFields()} == known


# --- settings


@pytest.mark.parametrize("cls", [SchedulerSettings, AgentSettings, GatewaySettings, CliSettings])
def test_every_setting_is_shown(cls: type[Any]) -> None:
    """That each is read by its program: tests/rules/test_settings_are_read.py. Its page: gpufleet_lib/test_docs.py."""
    keys = list(settings_of(cls))
    shown = Resolved(cls(), dict.fromkeys(keys, "default")).rows()
    assert [key for key, _, _ in shown] == keys
    assert {field.name for field in fields(cls)} == {key.partition(".")[0] for key in keys}
