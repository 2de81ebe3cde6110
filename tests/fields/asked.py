"""What a job can be asked for, for the tests that go over every field of a spec and every option of `submit`.

A new field or option is tried with something of its own; where not anything will do, it gets a line here.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.app import command_line
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.fleet.submitting.job_spec import spec_of
from gpufleet.jobs.folders import Entry, Folder
from scheduler.api.jobs.submitting import SubmitCalls
from scheduler.api.roles import Caller, _caller
from scheduler.blobs.folders import Contents
from scheduler.core.jobs import on_jobs_submitted
from scheduler.state.access import Role, Secret
from scheduler.state.durable import Durable
from scheduler.state.events import SharedRootChecked
from scheduler.state.groups.group import GroupId, GroupName, Membership, UserGroup
from scheduler.state.ids import JobId, SecretName, TokenId, UserName
from scheduler.state.jobs import Job
from scheduler.state.records import JobQueued
from scheduler.state.specs import JobSpec, Outcome
from scheduler.state.units import Instant
from tests.core.fleet import Fleet
from tests.fields.filled import Needs, Values

ENVIRONMENT = {"PATH": "/bin", "LANG": "C.UTF-8", "TERM": "xterm", "HOME": "/home/ada", "EDITOR": "vi"}
FOLDER = "/home/ada"

BASE = job_pb2.JobSpec(argv=["train"], cwd="/data")

ENVIRONMENT_FILES = ("a.txt", "environment.yml", "pyproject.toml", "requirements.txt", "uv.lock")
"""What environments are made of; the folder of a job has all of them."""

ROOT = "ab" * 16
"""The shared folder that the nodes see."""

VALUES: Values = {
    "argv": ["train", "--fast"],
    "cwd": "/elsewhere",
    "submit_cwd": "/from",
    "devices.per_node_count": 2,
    "devices.models": ["h100"],
    "devices.share.milli": 250,
    "pins.node": "n2",
    "pins.device_indices": [2, 3],
    "nodelist": ["n1", "n2"],
    "exclude": ["n3"],
    "node_labels": {"zone": "east"},
    "band": job_pb2.BAND_HIGH,
    "group": "vision",
    "after.job_id": 2,
    "after.condition": job_pb2.DEPENDENCY_CONDITION_ANY,
    "array.indices": "1-5",
    "input": job_pb2.INPUT_MODE_PIPE,
    "limit_signal.before": timedelta(seconds=90),
    "requeue_fence": timedelta(hours=1),
    "output_file": "train-%j.log",
    "gpu_mode": job_pb2.GPU_MODE_PREFERRED,
    "content_type": "audio/mpeg",
    "cpu_argv": ["./on-cpus", "a b"],
    "env": {"A": "1"},
    "secrets": {"TOKEN": "hf"},
    "files.path": "data/train.csv",
    "files.digest": "ab" * 32,
    "files.size_bytes": 5,
    "results": ["out/**", "!*.tmp"],
    "keep": ["ckpt/**"],
    "inputs.job_id": 41,
    "inputs.pattern": "out/**",
    "inputs.name": "models",
    "folder.digest": "ef" * 32,
    "folder.size_bytes": 90,
    "folder.entry_count": 3,
    "folder.content_bytes": 70,
    "environment.setup": "uv sync",
    "environment.requirements": "requirements.txt",
    "environment.conda": "environment.yml",
    "files.shared_root": ROOT,
    "files.shared_path": "team/train.csv",
    "container.image": "ubuntu:24.04",
    "container.mounts.source": "/data",
    "container.mounts.target": "/mnt",
    "container.image_secret": "hub",
    "process.rlimits.name": "CORE",
    "process.rlimits.soft": 150,
    "process.rlimits.hard": 300,
}
"""Where not anything will do: what each field is tried with."""

GPUS: Values = {"devices.count": 4}
PINS: Values = {"pins.node": "n1", "pins.device_indices": [0, 1]}
AFTER: Values = {"after.job_id": 1, "after.condition": job_pb2.DEPENDENCY_CONDITION_OK}
RLIMIT: Values = {"process.rlimits.name": "NOFILE", "process.rlimits.soft": 100, "process.rlimits.hard": 200}
FILE: Values = {"files.path": "a.csv", "files.digest": "cd" * 32}
INPUT: Values = {"inputs.job_id": 3, "inputs.pattern": "*.pt"}
UPLOADED: Values = {
    "folder.digest": "12" * 32,
    "folder.size_bytes": 80,
    "folder.entry_count": 2,
    "folder.content_bytes": 60,
}
CONTAINER: Values = {"container.image": "busybox"}
MOUNT: Values = {**CONTAINER, "container.mounts.source": "/a", "container.mounts.target": "/b"}
SHARED: Values = {**FILE, "files.shared_root": "cd" * 16, "files.shared_path": "a.csv"}
SIGNAL: Values = {"limit_signal.signal": 10, "time_limit": timedelta(minutes=10)}
NEEDS: Needs = {
    "devices.per_node_count": GPUS,
    "devices.min_memory_bytes": GPUS,
    "devices.models": GPUS,
    "devices.share.milli": GPUS,
    "devices.share.memory_bytes": {**GPUS, "devices.share.milli": 500},
    "devices.allow_busy": GPUS,
    "pins.node": PINS,
    "pins.device_indices": PINS,
    "devices.share.profile": GPUS,
    "no_gpu_selection": GPUS,
    "gpu_mode": GPUS,
    "cpu_argv": {"gpu_mode": job_pb2.GPU_MODE_NEVER},
    "after.job_id": AFTER,
    "after.condition": AFTER,
    "array.indices": {"array.indices": "1-3"},
    "array.max_active_count": {"array.indices": "1-3"},
    "array.max_fails": {"array.indices": "1-3"},
    "limit_signal.signal": SIGNAL,
    "limit_signal.before": SIGNAL,
    "limit_signal.leader_only": SIGNAL,
    "files.path": FILE,
    "files.digest": FILE,
    "files.size_bytes": FILE,
    "files.is_executable": FILE,
    "files.is_only_shared": FILE,
    "files.shared_root": SHARED,
    "files.shared_path": {**SHARED, "files.shared_root": ROOT},
    "keep": {"results": ["out/**"], "cwd": ""},
    **{f"inputs.{name}": INPUT for name in ("job_id", "pattern", "name", "array_index")},
    "folder.digest": UPLOADED,
    "folder.size_bytes": UPLOADED,
    "folder.entry_count": UPLOADED,
    "folder.content_bytes": UPLOADED,
    **{f"environment.{tool}": UPLOADED for tool in ("setup", "requirements", "uv", "conda")},
    "container.mounts.source": MOUNT,
    "container.mounts.target": MOUNT,
    "container.mounts.is_read_only": MOUNT,
    "container.image_secret": CONTAINER,
    "process.rlimits.name": RLIMIT,
    "process.rlimits.soft": RLIMIT,
    "process.rlimits.hard": RLIMIT,
    "requeue_on_timeout": {"time_limit": timedelta(minutes=10)},
}
"""What a field needs beside it."""

TYPED: dict[str, Any] = {
    "gpus": 2,
    "gpu_share": "0.5",
    "min_memory": "4GB",
    "gpu_model": ["h100"],
    "nodes": 2,
    "gpus_per_node": 2,
    "node_gpu_ids": "n1:0,1",
    "cpus": 3,
    "memory": "1GB",
    "nodelist": ["n1"],
    "exclude": ["n2"],
    "node_label": ["zone=east"],
    "env": ["A=1"],
    "cwd": "/data",
    "label": ["team=vision"],
    "band": "high",
    "group": "vision",
    "time_limit": "1h",
    "grace": "5s",
    "signal": "B:USR1@5m",
    "requeue_fence": "1m",
    "after": ["1:any"],
    "array": "1-9%3",
    "max_fails": 4,
    "begin": "2h",
    "queue_timeout": "90m",
    "sample_every": "5s",
    "output_file": "train-%j.log",
    "gpu_mode": "preferred",
    "content_type": "audio/mpeg",
    "cpu_command": "./on-cpus 'a b'",
    "notify": "true",
    "rlimit": ["NOFILE=100:200"],
    "secret": ["hf=TOKEN"],
    "file": [f"sha256:{'ab' * 32}:5:x=data/train.csv//{ROOT}/team/train.csv"],
    "download": ["out/**"],
    "input": ["41.3:out/**=models"],
    "image": "ubuntu:24.04",
    "mount": ["/data:/mnt:ro"],
    "image_secret": "hub",
    "upload": f"sha256:{'ef' * 32}:90:3:70",
    "setup": "uv sync",
    "requirements": "requirements.txt",
    "conda": "environment.yml",
}
"""Where not anything will do: what each option is given."""

BESIDE: dict[str, dict[str, Any]] = {
    "min_memory": {"gpus": 2},
    "gpu_model": {"gpus": 2},
    "gpus_per_node": {"gpus": 4},
    "allow_busy": {"gpus": 2},
    "gpu_mode": {"gpus": 2},
    "cpu_command": {"gpus": 2, "gpu_mode": "preferred"},
    "max_fails": {"array": "1-9"},
    **{tool: {"upload": f"sha256:{'12' * 32}:80:2:60"} for tool in ("setup", "requirements", "uv", "conda")},
    "mount": {"image": "busybox"},
    "image_secret": {"image": "busybox"},
}
"""What an option needs beside it."""

LOCAL = {
    "config": "it is asked of the scheduler before: --gpus and --min-memory come of it (cli/submitting/estimating.py)"
}
"""Options that are in no spec, and why."""


def typed(option: str) -> Any:
    """What an option of `submit` is given where it is tried."""
    if option in TYPED:
        return TYPED[option]
    default = getattr(JobOptions(), option)
    if isinstance(default, bool):
        return not default
    kind = str(next(each.type for each in fields(JobOptions) if each.name == option))
    return 7 if "int" in kind else ["mine"] if "list" in kind else "mine"


def options_with(option: str) -> tuple[JobOptions, JobOptions]:
    """The options without one, and with it; both with what it needs beside it."""
    without = JobOptions(**BESIDE.get(option, {}))
    return without, replace(without, **{option: typed(option)})


def asked_with(option: str) -> tuple[job_pb2.JobSpec, job_pb2.JobSpec]:
    """The spec without an option, and with it."""
    without, told = options_with(option)
    return spec_of(without, ["train"], ENVIRONMENT, FOLDER), spec_of(told, ["train"], ENVIRONMENT, FOLDER)


def parsed(words: list[str], folder: str = FOLDER) -> job_pb2.JobSpec:
    """The spec that gpuctl itself makes of a command line."""
    name, *rest = words[1:]
    command: Any = command_line().get_command(None, name)
    context = command.make_context(name, rest)
    options = JobOptions(**{each.name: context.params[each.name] for each in fields(JobOptions)})
    return spec_of(options, context.params["command"], ENVIRONMENT, folder)


def fleet() -> Fleet:
    """Nodes that have all that the values above ask for; nothing is placed."""
    made = Fleet(passes=False)
    for number in range(1, 9):
        node = made.add_node(
            f"n{number}", gpus=8, model="NVIDIA H100", labels=(("zone", "east"),), shared_root=ROOT, engine="podman"
        )
        for _ in made.join(node):
            pass
        made.take_up(SharedRootChecked(at=made.now, node=node.name, root=ROOT))
    return made


def put_groups(durable: Durable) -> None:
    """Two groups of ada's: the first is that of jobs which name none."""
    for number, name in enumerate(("ml", "vision"), 1):
        mine = Membership(user=UserName("ada"), since=Instant(number))
        durable.groups.put(
            UserGroup(id=GroupId(number), name=GroupName(name), created_at=Instant(number), members=(mine,))
        )


async def _as_asked(spec: JobSpec, *_: object) -> JobSpec:
    """What a spec names of other jobs, without a look at those."""
    return spec


async def job_of(spec: job_pb2.JobSpec) -> Job:
    """The job that a submit of this spec makes: by the servicer's own hand, and by the core's."""
    state = fleet().state
    put_groups(state.durable)
    for name in (*spec.secrets.values(), spec.container.image_secret):
        mine = Secret(user=UserName("ada"), name=SecretName(name), set_at=fleet().now, set_by=UserName("ada"))
        state.durable.secrets[mine.key] = mine
    calls: Any = object.__new__(SubmitCalls)
    calls.engine = SimpleNamespace(view=state, now=lambda: fleet().now)
    calls.known_specs = None
    calls.with_inputs = _as_asked
    sizes = {each.digest: each.size_bytes for each in spec.files}
    sizes[spec.folder.digest] = spec.folder.size_bytes
    contents = Contents({}, spec.folder.entry_count, spec.folder.content_bytes)
    calls.blobs = SimpleNamespace(
        on_thread=asyncio.to_thread,
        keep=lambda wanted: None,
        size_of=lambda user, digest: sizes[digest],
        folder_bytes_max=2**40,
        folders=SimpleNamespace(
            contents=lambda user, digest: contents,
            read=lambda user, digest: Folder(tuple(map(Entry, ENVIRONMENT_FILES)), ()),
            clash_with=lambda user, digest, files: None,
        ),
    )
    calls._outcome = _ended_well
    _caller.set(Caller(UserName("ada"), Role.ADMIN, TokenId("t")))
    submitted, _ = await calls._submitted(scheduler_pb2.SubmitRequest(specs=[spec]), "")
    decision = on_jobs_submitted(state, submitted)
    assert decision.records, decision.reply
    record = decision.records[0]
    assert isinstance(record, JobQueued)
    return record.job


async def _ended_well(job: JobId) -> Outcome:
    return Outcome.SUCCEEDED
