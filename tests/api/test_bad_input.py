"""Bad input: a clear error with the field's path and a next step, nothing changed, and never our own failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, node_agent_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import Code, Reason
from tests.api.calls import Caller
from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet

Spec = job_pb2.JobSpec
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Bad:
    """One wrong spec: what it changes of a right one, and how it must be refused."""

    name: str
    fields: dict[str, Any]
    path: str
    reason: Reason = Reason.INVALID_ARGUMENT
    says: str = ""


UNHEARD_OF = cast(job_pb2.DependencyCondition.ValueType, 9)


def gpus(count: int = 1, **fields: Any) -> dict[str, Any]:
    return {"devices": [job_pb2.DeviceRequest(count=count, **fields)]}


def pins(*indices: int, node: str = "n1", **fields: Any) -> dict[str, Any]:
    return {"pins": [job_pb2.NodePins(node=node, device_indices=indices)], **fields}


def array(indices: str, **fields: int) -> dict[str, Any]:
    return {"array": job_pb2.ArraySpec(indices=indices, **fields)}


def seconds(count: int) -> Duration:
    return Duration(seconds=count)


def at_limit(**signal: Any) -> dict[str, Any]:
    return {"limit_signal": job_pb2.LimitSignal(**signal), "time_limit": Duration(seconds=60)}


def limited(*limits: dict[str, Any]) -> dict[str, Any]:
    asked = [job_pb2.ResourceLimit(**{"name": "NOFILE", "soft": 100, **each}) for each in limits]
    return {"process": job_pb2.ProcessSettings(rlimits=asked)}


BAD_SPECS = [
    # The command.
    Bad("no command", {"argv": []}, "argv", Reason.COMMAND_EMPTY),
    Bad("an empty command", {"argv": [""]}, "argv", Reason.COMMAND_EMPTY),
    Bad("ten megabytes of arguments", {"argv": ["echo", *["x" * 100_000] * 100]}, "argv", Reason.ARGV_TOO_LONG),
    Bad("one argument longer than Linux takes", {"argv": ["echo", "x" * 200_000]}, "argv", Reason.ARGV_TOO_LONG),
    Bad("a NUL in an argument", {"argv": ["echo", "a\0b"]}, "argv[1]"),
    # The environment.
    Bad("a name with =", {"env": {"A=B": "1"}}, "env['A=B']", Reason.ENV_NAME_INVALID, "name"),
    Bad("an empty name", {"env": {"": "1"}}, "env['']", Reason.ENV_NAME_INVALID),
    Bad("a NUL in a name", {"env": {"A\0": "1"}}, "env['A\\x00']", Reason.ENV_NAME_INVALID),
    Bad("a NUL in a value", {"env": {"A": "1\0"}}, "env['A']"),
    Bad("a value longer than Linux takes", {"env": {"A": "x" * 200_000}}, "env['A']", Reason.ARGV_TOO_LONG),
    # The place.
    Bad("no working directory", {"cwd": ""}, "cwd"),
    Bad("a relative working directory", {"cwd": "here"}, "cwd", says="absolute"),
    Bad("a NUL in the working directory", {"cwd": "/a\0b"}, "cwd"),
    Bad("a path longer than Linux takes", {"cwd": "/" + "x" * 5_000}, "cwd"),
    # Counts.
    Bad("zero GPUs", gpus(0), "devices[0].count", says="--gpus"),
    Bad("negative GPUs", gpus(-1), "devices[0].count"),
    Bad("absurdly many GPUs", gpus(LARGEST), "devices[0].count"),
    Bad("more GPUs than any node has", gpus(3), "devices[0].count", Reason.NEVER_FITS, "2 GPUs"),
    Bad("negative CPUs", {"cpus": -1}, "cpus"),
    Bad("absurdly many CPUs", {"cpus": LARGEST}, "cpus"),
    Bad("more CPUs than any node has", {"cpus": 9}, "cpus", Reason.NEVER_FITS, "8 CPUs"),
    Bad("negative memory", {"memory_bytes": -1}, "memory_bytes"),
    Bad("absurdly much memory", {"memory_bytes": 2**62}, "memory_bytes"),
    Bad("more memory than any node has", {"memory_bytes": 2**50}, "memory_bytes", Reason.NEVER_FITS),
    Bad("negative GPU memory", gpus(min_memory_bytes=-1), "devices[0].min_memory_bytes"),
    Bad(
        "more GPU memory than any device has",
        gpus(min_memory_bytes=17 * 10**9),
        "devices[0].min_memory_bytes",
        Reason.NEVER_FITS,
        "16 GB",
    ),
    Bad("a negative node count", {"node_count": -1}, "node_count"),
    Bad("negative retries", {"retries": -1}, "retries"),
    Bad("a negative blame limit", {"blame_limit": -1}, "blame_limit"),
    # Names that nobody has, with the nearest one.
    Bad("an unknown node", {"nodelist": ["n2"]}, "nodelist[0]", Reason.UNKNOWN_NODE, "n1"),
    Bad("an unknown node to leave out", {"exclude": ["n1", "m1"]}, "exclude[1]", Reason.UNKNOWN_NODE, "n1"),
    Bad("an empty node name", {"nodelist": [""]}, "nodelist[0]"),
    Bad("an unknown model", gpus(models=["virtal"]), "devices[0].models", Reason.UNKNOWN_GPU_MODEL, "virtual"),
    Bad("an unknown model like none", gpus(models=["h100"]), "devices[0].models", Reason.UNKNOWN_GPU_MODEL, "virtual"),
    Bad("the only node left out", {"exclude": ["n1"]}, "", Reason.NEVER_FITS),
    Bad("a label that no node has", {"node_labels": {"a": "b"}}, "node_labels", Reason.NEVER_FITS),
    # Pins.
    Bad("pins that disagree with the count", pins(0, **gpus(2)), "devices[0].count", Reason.GPUS_DISAGREE_WITH_PINS),
    Bad("pins of an unknown node", pins(0, node="n2"), "pins[0].node", Reason.UNKNOWN_NODE, "n1"),
    Bad("pins of no node", pins(0, node=""), "pins[0]", says="--node-gpu-ids"),
    Bad("pins of no GPU", pins(), "pins[0]", says="--node-gpu-ids"),
    Bad("a GPU pinned twice", pins(1, 1), "pins[0].device_indices", says="twice"),
    Bad("a negative GPU", pins(-1), "pins[0].device_indices[0]"),
    Bad("a GPU that the node does not have", pins(7), "pins[0].device_indices", Reason.UNKNOWN_DEVICE, "7"),
    # How GPUs are taken.
    Bad("a mode that there is not", {"gpu_mode": cast(job_pb2.GpuMode.ValueType, 9)}, "gpu_mode", says="PREFERRED"),
    Bad("preferred GPUs, and none", {"gpu_mode": job_pb2.GPU_MODE_PREFERRED}, "gpu_mode", says="--gpus 1"),
    Bad("nothing to decide by", {"gpu_mode": job_pb2.GPU_MODE_AUTO}, "gpu_mode", says="--content-type"),
    Bad("pins that are never taken", pins(0, gpu_mode=job_pb2.GPU_MODE_NEVER), "gpu_mode", says="pins"),
    Bad("a command that never runs", {"cpu_argv": ["true"]}, "cpu_argv", says="--gpu-mode"),
    Bad("an empty command", {"cpu_argv": [""], "gpu_mode": job_pb2.GPU_MODE_NEVER}, "cpu_argv", Reason.COMMAND_EMPTY),
    Bad("no content type", {"content_type": "audio"}, "content_type", says="audio/mpeg"),
    Bad("a content type that breaks a line", {"content_type": "a/b; x=\n"}, "content_type"),
    Bad("a content type without an end", {"content_type": f"a/b;{'x' * 300}"}, "content_type"),
    # Times.
    Bad("a time limit of nothing", {"time_limit": seconds(0)}, "time_limit"),
    Bad("a negative time limit", {"time_limit": seconds(-5)}, "time_limit"),
    Bad("an absurd time limit", {"time_limit": seconds(10**11)}, "time_limit"),
    Bad("a signal that there is not", at_limit(signal=65), "limit_signal.signal", says="1 to 64"),
    Bad("no signal", at_limit(before=seconds(5)), "limit_signal.signal"),
    Bad("a signal that nobody catches", at_limit(signal=9), "limit_signal.signal", says="SIGKILL"),
    Bad(
        "a signal before no limit",
        {"limit_signal": job_pb2.LimitSignal(signal=10)},
        "limit_signal",
        says="--time-limit",
    ),
    Bad("a signal at the limit", at_limit(signal=10, before=seconds(0)), "limit_signal.before", says="more than 0"),
    Bad("a signal before the start", at_limit(signal=10, before=seconds(90)), "limit_signal.before", says="90 s"),
    Bad("a minute before a minute", at_limit(signal=10), "limit_signal.before", says="60 s"),
    Bad("another attempt at no limit", {"requeue_on_timeout": True}, "requeue_on_timeout", says="--time-limit"),
    Bad(
        "another attempt of what is not run again",
        {"requeue_on_timeout": True, "no_requeue": True, "time_limit": seconds(9)},
        "requeue_on_timeout",
        says="--no-requeue",
    ),
    Bad("a pattern that there is not", {"output_file": "a-%z"}, "output_file", says="%z"),
    Bad("half a pattern", {"output_file": "a-%"}, "output_file", says="%j"),
    Bad("a name of three digits", {"output_file": "%3x"}, "output_file", says="%3x"),
    Bad("an index of no array", {"output_file": "a-%a"}, "output_file", says="array"),
    Bad("a folder for the output", {"output_file": "logs/"}, "output_file", says="folder"),
    Bad("a line break in the output's file", {"output_file": "a\nb"}, "output_file", says="control"),
    Bad("a file longer than Linux takes", {"output_file": "x" * 5_000}, "output_file"),
    Bad("a niceness below none", {"process": job_pb2.ProcessSettings(nice=-1)}, "process.nice", says="0 to 19"),
    Bad("a niceness of Slurm's", {"process": job_pb2.ProcessSettings(nice=100)}, "process.nice", says="--band low"),
    Bad("a limit that there is not", limited({"name": "CPUS"}), "process.rlimits[0].name", says="NOFILE"),
    Bad("a limit twice", limited({}, {}), "process.rlimits[1].name", says="second time"),
    Bad("a limit below none", limited({"soft": -2}), "process.rlimits[0].soft", says="-1 for none"),
    Bad(
        "a soft limit above the hard one",
        limited({"soft": 9, "hard": 8}),
        "process.rlimits[0].soft",
        says="NOFILE=4096:8192",
    ),
    Bad(
        "no soft limit under a hard one", limited({"soft": -1, "hard": 8}), "process.rlimits[0].soft", says="unlimited"
    ),
    Bad("a relative folder of the submit", {"submit_cwd": "here"}, "submit_cwd", says="absolute"),
    Bad("a negative grace", {"grace": seconds(-1)}, "grace"),
    Bad("a grace of more than a day", {"grace": seconds(90_000)}, "grace", says="between SIGTERM and SIGKILL"),
    Bad("a fence under twice the usual grace", {"requeue_fence": seconds(40)}, "requeue_fence", says="twice the grace"),
    Bad(
        "all nodes left out", {"nodelist": ["n1"], "exclude": ["n1"]}, "exclude", says="none of the nodes of --nodelist"
    ),
    Bad("a fence that is too short", {"requeue_fence": seconds(1), "grace": seconds(0)}, "requeue_fence", says="30"),
    Bad("a grace that fills the fence", {"requeue_fence": seconds(60), "grace": seconds(31)}, "grace", says="half"),
    Bad("a sampling of every millisecond", {"sampling_interval": seconds(0)}, "sampling_interval"),
    Bad("a queue time-out of nothing", {"queue_timeout": seconds(0)}, "queue_timeout"),
    Bad("a begin before all times", {"begin_time": Timestamp(seconds=-1)}, "begin_time", says="--begin"),
    Bad("a begin after all times", {"begin_time": Timestamp(seconds=2**60)}, "begin_time", says="--begin"),
    Bad("what is kept of a folder that stays", {"keep": ["ckpt/**"]}, "keep", says="--upload . in place of --cwd"),
    Bad("what is kept for no attempt", {"keep": ["a"], "cwd": "", "no_requeue": True}, "keep", says="no next attempt"),
    Bad("what is kept that is no pattern", {"keep": ["# a"], "cwd": ""}, "keep[0]", says="chooses nothing"),
    Bad("more that is kept than is looked for", {"keep": ["a"] * 101, "cwd": ""}, "keep", says="100 are the most"),
    Bad("a place to take of a job not to run again", {"is_preemptible": True, "no_requeue": True}, "is_preemptible"),
    # Other jobs.
    Bad("a job to wait for that is none", {"after": [job_pb2.Dependency(job_id=0)]}, "after[0].job_id"),
    Bad(
        "a job that nobody has",
        {"after": [job_pb2.Dependency(job_id=999_999_999)]},
        "after",
        Reason.JOB_NOT_FOUND,
        "999",
    ),
    Bad(
        "an end that there is not",
        {"after": [job_pb2.Dependency(job_id=1, condition=UNHEARD_OF)]},
        "after[0].condition",
    ),
    Bad("too many jobs to wait for", {"after": [job_pb2.Dependency(job_id=1)] * 101}, "after", says="100"),
    Bad("a job named twice", {"after": [job_pb2.Dependency(job_id=1)] * 2}, "after[1].job_id", says="second time"),
    # Names and labels.
    Bad("a name with a newline", {"name": "two\nlines"}, "name"),
    Bad("a name that is too long", {"name": "x" * 1_000}, "name"),
    *(
        Bad(f"a name that names other jobs: {name}", {"name": name}, "name", says="names other jobs")
        for name in ("all", "last", "41", "3-5", "41.3", "41.3-7")
    ),
    Bad("too many labels", {"labels": {f"l{number}": "" for number in range(65)}}, "labels"),
    Bad("a label without a name", {"labels": {"": "x"}}, "labels['']"),
    Bad("a band that does not exist", {"band": 99}, "band", says="urgent"),
    Bad("a kind that does not exist", {"kind": 99}, "kind"),
    Bad("an input that does not exist", {"input": 99}, "input"),
    Bad("an input for a second try", {"input": job_pb2.INPUT_MODE_PIPE, "retries": 1}, "retries", says="gone with it"),
    # Notices.
    Bad("a notice to a file", {"notify": "file:///etc/passwd"}, "notify", says="http"),
    Bad("a notice with a password", {"notify": "https://me:secret@example.com/"}, "notify", says="password"),
    Bad("a notice to no host", {"notify": "http:///path"}, "notify", says="host"),
    Bad("a notice to a port that is none", {"notify": "http://host:99999/"}, "notify", says="port"),
    Bad("a URL with a space", {"notify": "https://host/a b"}, "notify", says="percent-encode"),
    Bad("a notice of two lines", {"notify": "date\nreboot"}, "notify", says="one line"),
    Bad("a notice that is blank", {"notify": "  "}, "notify", says="blank"),
    Bad("a notice that is too long", {"notify": "x" * 8_193}, "notify", says="8,192"),
    # Arrays.
    Bad("no index", array(""), "array.indices", says="1-100"),
    Bad("an index that is none", array("1-3,x"), "array.indices", says="'x'"),
    Bad("a hole between commas", array("1,,3"), "array.indices", says="missing"),
    Bad("a negative index", array("-3-4"), "array.indices", says="'-3-4'"),
    Bad("a range that ends before it begins", array("5-3"), "array.indices", says="3-5"),
    Bad("a step of nothing", array("1-9:0"), "array.indices", says="step"),
    Bad("an index twice", array("1-5,4"), "array.indices", says="index 4 is named twice"),
    Bad("an index beyond all", array(f"{LARGEST + 1}"), "array.indices", says="2,147,483,647"),
    Bad("a million and one", array("0-1000000"), "array.indices", says="1,000,000"),
    Bad("indices without an end", array("1," * 40_000), "array.indices", says="65,536"),
    Bad("a negative cap", array("1-3", max_active_count=-1), "array.max_active_count"),
    Bad("a negative number of failures", array("1-3", max_fails=-1), "array.max_fails"),
    # Several nodes.
    Bad("a node fewer than none", {"node_count": -1}, "node_count"),
    Bad("more nodes than a job may have", {"node_count": 1_001}, "node_count"),
    Bad("more nodes than there are", {"node_count": 2}, "node_count", Reason.NEVER_FITS),
    Bad("GPUs that do not divide", {"node_count": 2, **gpus(count=3)}, "devices[0].count", says="evenly"),
    Bad("GPUs that disagree", {"node_count": 2, **gpus(count=2, per_node_count=2)}, "devices[0].count", says="have 4"),
    Bad("no whole nodes", gpus(count=3, per_node_count=2), "devices[0].per_node_count", says="multiple"),
    Bad("several nodes and no span", {"node_count": 2, "no_span": True}, "no_span"),
    # What is not built.
    Bad("a MIG profile", gpus(share=job_pb2.DeviceShare(profile="1g")), "devices[0].share.profile", Reason.NOT_BUILT),
    Bad("a negative share", gpus(share=job_pb2.DeviceShare(milli=-1)), "devices[0].share.milli"),
    Bad("more than a device", gpus(share=job_pb2.DeviceShare(milli=1001)), "devices[0].share.milli", says="--gpus"),
    Bad(
        "negative memory of a share",
        gpus(share=job_pb2.DeviceShare(milli=1, memory_bytes=-1)),
        "devices[0].share.memory_bytes",
    ),
    Bad(
        "two sizes of a share",
        gpus(min_memory_bytes=10**9, share=job_pb2.DeviceShare(milli=500, memory_bytes=2 * 10**9)),
        "devices[0].share.memory_bytes",
    ),
    Bad("a service", {"kind": job_pb2.JOB_KIND_SERVICE}, "kind", Reason.INVALID_ARGUMENT),
]


async def everything(client: Client) -> list[Any]:
    """What must not change."""
    queue = await client.queue(include_finished=True, page_size=1000)
    nodes = await client.stub.ListNodes(scheduler_pb2.ListNodesRequest())
    tokens = await client.stub.ListTokens(scheduler_pb2.ListTokensRequest(page_size=1000))
    return [*queue.jobs, *((node.name, node.is_draining) for node in nodes.nodes), *tokens.tokens]


@pytest.mark.parametrize("bad", BAD_SPECS, ids=lambda bad: bad.name)
async def test_a_wrong_spec_is_refused_with_its_field(admin: Client, bad: Bad) -> None:
    before = await everything(admin)
    good = admin.spec("true", is_held=True)
    wrong = Spec()
    wrong.CopyFrom(good)
    for field in bad.fields:
        wrong.ClearField(field)  # type: ignore[arg-type]
    wrong.MergeFrom(Spec(**bad.fields))
    error = await refusal(admin.stub.Submit(scheduler_pb2.SubmitRequest(specs=[good, wrong])))
    assert error.reason is bad.reason, error
    assert error.next_step and len(error.message) < 1_000
    if bad.path:
        path = f"specs[1].{bad.path}"
        assert path in [violation.field for violation in error.violations], error.violations
        assert error.message.startswith(path), error.message
    assert bad.says in f"{error.message} {error.next_step}", f"{error.message} {error.next_step}"
    assert await everything(admin) == before


def waiting_for_many() -> job_pb2.JobSpec:
    """A spec that waits for as many jobs as one may."""
    return job_pb2.JobSpec(argv=["true"], cwd="/", after=[job_pb2.Dependency(job_id=each) for each in range(1, 101)])


BAD_SUBMITS: list[tuple[str, Callable[[Any], dict[str, Any]], str]] = [
    ("no specs", lambda spec: {}, "specs"),
    ("too many specs", lambda spec: {"specs": [Spec(argv=["true"], cwd="/")] * 10_001}, "specs"),
    ("too many jobs to wait for in all", lambda spec: {"specs": [waiting_for_many()] * 101}, "specs"),
    ("a negative count", lambda spec: {"specs": [spec], "count": -1}, "count"),
    ("an absurd count", lambda spec: {"specs": [spec], "count": LARGEST}, "count"),
    ("a count of several specs", lambda spec: {"specs": [spec, spec], "count": 2}, "count"),
    ("a long request id", lambda spec: {"specs": [spec], "request_id": "x" * 129}, "request_id"),
]


@pytest.mark.parametrize(("fields", "path"), [row[1:] for row in BAD_SUBMITS], ids=[row[0] for row in BAD_SUBMITS])
async def test_a_wrong_submit_is_refused_with_its_field(
    admin: Client, fields: Callable[[Any], dict[str, Any]], path: str
) -> None:
    before = await everything(admin)
    request = scheduler_pb2.SubmitRequest(**fields(admin.spec("true", is_held=True)))
    error = await refusal(admin.stub.Submit(request))
    assert [violation.field for violation in error.violations] == [path]
    assert error.code is Code.INVALID_ARGUMENT and error.next_step
    assert await everything(admin) == before


def _calls() -> list[tuple[str, str, Any, Reason, str]]:
    """(what, call, request, reason, field) of everything else."""
    s = scheduler_pb2
    bad = Reason.INVALID_ARGUMENT
    nowhere, gone = 999_999_999, Reason.JOB_NOT_FOUND
    agent = s.ProgramSelector(program="agent", node="nowhere")

    def scheduler_on(name: str) -> Any:
        return s.ProgramSelector(program=name, node="n1")

    def output(**fields: Any) -> Any:
        return s.StreamOutputRequest(job_id=1, **fields)

    def update(*paths: str, **fields: Any) -> Any:
        return s.UpdateJobRequest(jobs=select(1), update_mask=FieldMask(paths=paths), **fields)

    return [
        ("no job", "GetJob", s.GetJobRequest(), bad, "job_id"),
        ("an unknown job", "GetJob", s.GetJobRequest(job_id=nowhere), gone, ""),
        ("a negative job", "GetJob", s.GetJobRequest(job_id=-1), gone, ""),
        ("the largest number as job", "GetJob", s.GetJobRequest(job_id=2**62), gone, ""),
        ("a number that nothing is stored by", "GetJob", s.GetJobRequest(job_id=2**63 - 1), bad, "job_id"),
        ("an unknown name", "GetJob", s.GetJobRequest(name="nobody's"), gone, ""),
        ("an unknown job", "GetStory", s.GetStoryRequest(job_id=nowhere), gone, ""),
        ("an absurd page", "GetStory", s.GetStoryRequest(job_id=1, page_size=LARGEST), bad, "page_size"),
        ("an unknown job", "Explain", s.ExplainRequest(job_id=nowhere), gone, ""),
        ("a negative page", "Queue", s.QueueRequest(page_size=-1), bad, "page_size"),
        ("an absurd page", "Queue", s.QueueRequest(page_size=1_001), bad, "page_size"),
        ("a state that does not exist", "Queue", s.QueueRequest(states=[99]), bad, "states[0]"),  # type: ignore[list-item]
        ("a wrong page token", "Queue", s.QueueRequest(page_token="x"), Reason.PAGE_TOKEN_INVALID, "page_token"),
        ("no jobs", "Cancel", s.CancelRequest(), bad, "jobs"),
        ("an unknown job", "Cancel", s.CancelRequest(jobs=select(1, nowhere)), gone, ""),
        ("too many jobs", "Cancel", s.CancelRequest(jobs=select(*[1] * 10_001)), bad, "jobs.job_ids"),
        ("a long reason", "Cancel", s.CancelRequest(jobs=select(1), reason="x" * 5_000), bad, "reason"),
        ("no change", "UpdateJob", update(), bad, "update_mask"),
        ("two changes", "UpdateJob", update("band", "is_held"), bad, "update_mask"),
        ("an unknown change", "UpdateJob", update("colour"), bad, "update_mask"),
        ("a name and a hold", "UpdateJob", update("name", "is_held", name="x"), bad, "update_mask"),
        ("no name", "UpdateJob", update("name"), bad, "name"),
        ("a long name", "UpdateJob", update("name", name="x" * 201), bad, "name"),
        ("a name of two lines", "UpdateJob", update("name", name="a\nb"), bad, "name"),
        ("a name that names other jobs", "UpdateJob", update("name", name="41"), bad, "name"),
        ("a limit of nothing", "UpdateJob", update("time_limit", time_limit=Duration()), bad, "time_limit"),
        ("a limit of ages", "UpdateJob", update("time_limit", time_limit=Duration(seconds=10**11)), bad, "time_limit"),
        ("no band", "UpdateJob", update("band"), bad, "band"),
        ("a band that does not exist", "UpdateJob", update("band", band=99), bad, "band"),
        ("no signal", "SignalJob", s.SignalJobRequest(jobs=select(1)), bad, "signal"),
        ("a negative signal", "SignalJob", s.SignalJobRequest(jobs=select(1), signal=-9), bad, "signal"),
        ("an absurd signal", "SignalJob", s.SignalJobRequest(jobs=select(1), signal=65), bad, "signal"),
        (
            "a long request id",
            "SignalJob",
            s.SignalJobRequest(jobs=select(1), signal=9, request_id="x" * 129),
            bad,
            "request_id",
        ),
        ("an unknown job", "RequeueJob", s.RequeueJobRequest(jobs=select(nowhere)), gone, ""),
        ("a long reason", "RequeueJob", s.RequeueJobRequest(jobs=select(1), reason="x" * 5_000), bad, "reason"),
        ("nothing", "StreamOutput", s.StreamOutputRequest(), bad, "job_id"),
        ("an unknown job", "StreamOutput", s.StreamOutputRequest(job_id=nowhere), gone, ""),
        ("a negative attempt", "StreamOutput", output(attempt=-1), bad, "attempt"),
        ("an attempt that never was", "StreamOutput", output(attempt=7), Reason.ATTEMPT_NOT_FOUND, "attempt"),
        ("a negative rank", "StreamOutput", output(rank=-1), bad, "rank"),
        ("negative lines", "StreamOutput", output(tail_lines=-1), bad, "tail_lines"),
        ("a stream that does not exist", "StreamOutput", output(stream=9), bad, "stream"),
        ("a setup to follow that never was", "StreamOutput", output(of_setup=True, follow=True), bad, "of_setup"),
        ("a setup of all attempts", "StreamOutput", output(of_setup=True, all_attempts=True), bad, "all_attempts"),
        ("a setup's stderr", "StreamOutput", output(of_setup=True, stream=job_pb2.STREAM_STDERR), bad, "stream"),
        ("a setup that never was", "StreamOutput", output(of_setup=True), bad, "of_setup"),
        ("a time to come", "StreamOutput", output(since_time=Timestamp(seconds=2**33)), bad, "since_time"),
        ("a time beyond all", "StreamOutput", output(since_time=Timestamp(seconds=LARGEST)), bad, "since_time"),
        ("a broken time", "StreamOutput", output(since_time=Timestamp(seconds=1, nanos=-1)), bad, "since_time"),
        (
            "a time to come of a log",
            "StreamOutput",
            s.StreamOutputRequest(program=s.ProgramSelector(program="scheduler"), since_time=Timestamp(seconds=2**33)),
            bad,
            "since_time",
        ),
        (
            "a negative offset",
            "StreamOutput",
            output(positions=[s.StreamPosition(attempt=1, stream=job_pb2.STREAM_STDOUT, offset=-1)]),
            bad,
            "positions[0].offset",
        ),
        (
            "an unknown program",
            "StreamOutput",
            s.StreamOutputRequest(program=s.ProgramSelector(program="coffee")),
            bad,
            "program.program",
        ),
        *(
            (f"a node of the scheduler, in {call}", call, request, bad, "program.node")
            for name in ("scheduler", "")
            for call, request in (
                ("UpdateServer", s.UpdateServerRequest(program=scheduler_on(name), log_level="info")),
                *([("StreamOutput", s.StreamOutputRequest(program=scheduler_on(name)))] if name else []),
            )
        ),
        (
            "no node",
            "StreamOutput",
            s.StreamOutputRequest(program=s.ProgramSelector(program="agent")),
            bad,
            "program.node",
        ),
        (
            "an unknown node",
            "StreamOutput",
            s.StreamOutputRequest(program=agent),
            Reason.NODE_NOT_FOUND,
            "program.node",
        ),
        ("an unknown node", "ListNodes", s.ListNodesRequest(names=["nowhere"]), Reason.NODE_NOT_FOUND, "names[0]"),
        ("an absurd page", "ListNodes", s.ListNodesRequest(page_size=LARGEST), bad, "page_size"),
        ("an unknown node", "UpdateNode", s.UpdateNodeRequest(node="nowhere"), Reason.NODE_NOT_FOUND, "node"),
        ("no node", "UpdateNode", s.UpdateNodeRequest(), bad, "node"),
        ("a node with a newline", "UpdateNode", s.UpdateNodeRequest(node="n1\n"), bad, "node"),
        ("a long reason", "UpdateNode", s.UpdateNodeRequest(node="n1", reason="x" * 5_000), bad, "reason"),
        ("an unknown node", "ForgetNode", s.ForgetNodeRequest(node="nowhere"), Reason.NODE_NOT_FOUND, "node"),
        ("a connected node", "ForgetNode", s.ForgetNodeRequest(node="n1"), Reason.NODE_NOT_LOST, "node"),
        ("an unknown node", "ApproveNode", s.ApproveNodeRequest(node="nowhere"), Reason.NODE_NOT_FOUND, "node"),
        ("no node", "ApproveNode", s.ApproveNodeRequest(), bad, "node"),
        ("an unknown node", "RevokeNode", s.RevokeNodeRequest(node="nowhere"), Reason.NODE_NOT_FOUND, "node"),
        ("a long reason", "RevokeNode", s.RevokeNodeRequest(node="n1", reason="x" * 5_000), bad, "reason"),
        ("no level", "UpdateServer", s.UpdateServerRequest(), bad, "log_level"),
        (
            "a gap of an agent",
            "UpdateServer",
            s.UpdateServerRequest(program=agent, releases_gap=True),
            bad,
            "releases_gap",
        ),
        ("an unknown level", "UpdateServer", s.UpdateServerRequest(log_level="loud"), bad, "log_level"),
        (
            "an unknown node",
            "UpdateServer",
            s.UpdateServerRequest(program=agent, log_level="info"),
            Reason.NODE_NOT_FOUND,
            "program.node",
        ),
        (
            "an unknown program",
            "UpdateServer",
            s.UpdateServerRequest(program=s.ProgramSelector(program="coffee"), log_level="info"),
            bad,
            "program.program",
        ),
        ("no user", "CreateToken", s.CreateTokenRequest(role=s.ROLE_USER), bad, "user"),
        ("a user with a newline", "CreateToken", s.CreateTokenRequest(user="eve\n", role=s.ROLE_USER), bad, "user"),
        ("no role", "CreateToken", s.CreateTokenRequest(user="eve"), bad, "role"),
        ("an unknown role", "CreateToken", s.CreateTokenRequest(user="eve", role=99), bad, "role"),  # type: ignore[arg-type]
        ("a long note", "CreateToken", s.CreateTokenRequest(user="eve", role=s.ROLE_USER, note="x" * 999), bad, "note"),
        (
            "no life",
            "CreateToken",
            s.CreateTokenRequest(user="eve", role=s.ROLE_USER, valid_for=seconds(0)),
            bad,
            "valid_for",
        ),
        (
            "an absurd life",
            "CreateToken",
            s.CreateTokenRequest(user="eve", role=s.ROLE_USER, valid_for=seconds(10**11)),
            bad,
            "valid_for",
        ),
        ("no name", "SetSecret", s.SetSecretRequest(value="x"), bad, "name"),
        ("a name with a slash", "SetSecret", s.SetSecretRequest(name="a/b", value="x"), bad, "name"),
        ("no value", "SetSecret", s.SetSecretRequest(name="a"), bad, "value"),
        ("a value with a NUL", "SetSecret", s.SetSecretRequest(name="a", value="x\0"), bad, "value"),
        ("a long value", "SetSecret", s.SetSecretRequest(name="a", value="x" * 32_769), bad, "value"),
        ("a wrong user", "SetSecret", s.SetSecretRequest(name="a", value="x", user="a b"), bad, "user"),
        ("an absurd page", "ListSecrets", s.ListSecretsRequest(page_size=LARGEST), bad, "page_size"),
        ("an unknown secret", "RemoveSecret", s.RemoveSecretRequest(name="a"), Reason.SECRET_NOT_FOUND, "name"),
        ("no name", "SetGroup", s.SetGroupRequest(gpus_max=1), bad, "name"),
        ("a name with a slash", "SetGroup", s.SetGroupRequest(name="a/b"), bad, "name"),
        ("fewer than no GPUs", "SetGroup", s.SetGroupRequest(name="a", gpus_max=-1), bad, "gpus_max"),
        ("too many GPUs", "SetGroup", s.SetGroupRequest(name="a", gpus_max=100_001), bad, "gpus_max"),
        ("negative hours", "SetGroup", s.SetGroupRequest(name="a", gpu_hours_week=-1), bad, "gpu_hours_week"),
        ("no shares", "SetGroup", s.SetGroupRequest(name="a", shares=0), bad, "shares"),
        ("negative shares", "SetGroup", s.SetGroupRequest(name="a", shares=-3), bad, "shares"),
        ("too many shares", "SetGroup", s.SetGroupRequest(name="a", shares=1_001), bad, "shares"),
        ("a wrong band", "SetGroup", s.SetGroupRequest(name="a", max_band=9), bad, "max_band"),  # type: ignore[arg-type]
        ("a wrong member", "SetGroup", s.SetGroupRequest(name="a", add_members=["x y"]), bad, "add_members[0]"),
        ("too many members", "SetGroup", s.SetGroupRequest(name="a", add_members=["x"] * 1_001), bad, "add_members"),
        (
            "a member who comes and goes",
            "SetGroup",
            s.SetGroupRequest(name="a", add_members=["x"], remove_members=["x"]),
            bad,
            "remove_members[0]",
        ),
        ("a member who is none", "SetGroup", s.SetGroupRequest(name="a", remove_members=["x"]), bad, "remove_members"),
        ("a wrong name", "ListGroups", s.ListGroupsRequest(name="a b"), bad, "name"),
        ("an absurd page", "ListGroups", s.ListGroupsRequest(page_size=LARGEST), bad, "page_size"),
        (
            "an unknown group",
            "RenameGroup",
            s.RenameGroupRequest(name="a", new_name="b"),
            Reason.GROUP_NOT_FOUND,
            "name",
        ),
        ("a wrong new name", "RenameGroup", s.RenameGroupRequest(name="a", new_name=""), bad, "new_name"),
        ("an unknown group", "RemoveGroup", s.RemoveGroupRequest(name="a"), Reason.GROUP_NOT_FOUND, "name"),
        ("an unknown token", "RevokeToken", s.RevokeTokenRequest(id="nope"), Reason.TOKEN_NOT_FOUND, "id"),
        ("an absurd page", "ListTokens", s.ListTokensRequest(page_size=LARGEST), bad, "page_size"),
        ("an absurd page", "ListAuditEntries", s.ListAuditEntriesRequest(page_size=LARGEST), bad, "page_size"),
        (
            "the last of all",
            "ListAuditEntries",
            s.ListAuditEntriesRequest(after_sequence=2**63 - 1),
            bad,
            "after_sequence",
        ),
        ("a wrong token", "Watch", s.WatchRequest(resume_token="x"), Reason.RESUME_TOKEN_EXPIRED, "resume_token"),
        ("too many jobs", "Watch", s.WatchRequest(job_ids=range(1, 10_002)), bad, "job_ids"),
    ]


@pytest.fixture
async def one_job(admin: Client) -> AsyncIterator[int]:
    """Job 1, which some of the calls name."""
    if not (await admin.queue(include_finished=True)).jobs:
        await admin.run("true")
    yield 1


@pytest.mark.parametrize(
    ("name", "request_", "reason", "field"),
    [row[1:] for row in _calls()],
    ids=[f"{row[1]}: {row[0]}" for row in _calls()],
)
async def test_a_wrong_request_is_refused_with_its_field(
    fleet: Fleet, admin: Client, caller: Caller, one_job: int, name: str, request_: Any, reason: Reason, field: str
) -> None:
    before = await everything(admin)
    error = await caller.error(f"Scheduler/{name}", request_, fleet.scheduler.token("admin"))
    assert error is not None, "it was answered"
    assert error.reason is reason, error
    assert error.next_step and len(error.message) < 500
    if field:
        assert [violation.field for violation in error.violations] == [field], error.violations
    assert await everything(admin) == before


def _announcement(**fields: Any) -> Any:
    info = fields.pop("info", {})
    right: dict[str, Any] = {"node": "n7", "agent_id": "a", "boot_id": "b", "incarnation": 1, "protocol_version": 1}
    return node_agent_pb2.RegisterRequest(**(right | fields), info=node_pb2.NodeInfo(**({"cpus": 1} | info)))


GPU = node_pb2.Device(uuid="GPU-1", index=0, name="x", memory_bytes=1)
BAD_AGENTS = [
    ("no name", _announcement(node=""), Reason.INVALID_ARGUMENT, "node"),
    ("a name with a newline", _announcement(node="n\n"), Reason.INVALID_ARGUMENT, "node"),
    ("a name that is too long", _announcement(node="n" * 64), Reason.INVALID_ARGUMENT, "node"),
    ("no agent id", _announcement(agent_id=""), Reason.INVALID_ARGUMENT, "agent_id"),
    ("no boot id", _announcement(boot_id=""), Reason.INVALID_ARGUMENT, "boot_id"),
    ("no CPUs", _announcement(info={"cpus": 0}), Reason.INVALID_ARGUMENT, "info.cpus"),
    ("negative memory", _announcement(info={"memory_bytes": -1}), Reason.INVALID_ARGUMENT, "info.memory_bytes"),
    ("two devices of one UUID", _announcement(info={"devices": [GPU, GPU]}), Reason.INVALID_ARGUMENT, "info.devices"),
    (
        "a device without UUID",
        _announcement(info={"devices": [node_pb2.Device(index=0)]}),
        Reason.INVALID_ARGUMENT,
        "info.devices[0].uuid",
    ),
    ("another version", _announcement(protocol_version=2), Reason.AGENT_VERSION_UNSUPPORTED, "protocol_version"),
    ("no version", _announcement(protocol_version=0), Reason.AGENT_VERSION_UNSUPPORTED, "protocol_version"),
    ("the name of another agent", _announcement(node="n1"), Reason.NODE_ID_TAKEN, "node"),
]


@pytest.mark.parametrize(
    ("request_", "reason", "field"), [row[1:] for row in BAD_AGENTS], ids=[row[0] for row in BAD_AGENTS]
)
async def test_a_wrong_agent_is_refused_with_its_field(
    fleet: Fleet, admin: Client, caller: Caller, request_: Any, reason: Reason, field: str
) -> None:
    before = await everything(admin)
    error = await caller.error("NodeAgent/Register", request_, fleet.scheduler.token("agent"))
    assert error is not None
    assert error.reason is reason, error
    assert [violation.field for violation in error.violations] == [field]
    assert error.next_step
    assert await everything(admin) == before


async def test_a_message_of_a_hundred_megabytes_is_refused_and_the_server_goes_on(
    fleet: Fleet, admin: Client, caller: Caller
) -> None:
    spec = Spec(argv=["x" * 100_000_000])
    token = fleet.scheduler.token("admin")
    # Past the client's own limit, as another client would send it.
    options = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(fleet.scheduler.address, options=options) as channel:
        large = Caller(channel)
        error = await large.error("Scheduler/Submit", scheduler_pb2.SubmitRequest(specs=[spec]), token)
        large.forget()
    assert error is not None
    assert error.reason is Reason.MESSAGE_TOO_LARGE
    assert (await caller.error("Scheduler/GetServerInfo", token=token)) is None


async def test_bytes_that_are_no_message_are_refused_and_the_server_goes_on(fleet: Fleet, caller: Caller) -> None:
    token = (("authorization", f"Bearer {fleet.scheduler.token('admin')}"),)
    not_utf8 = b"\x0a\x05\x0a\x03\xff\xfe\xfd"
    for data in (b"\xff\xff\xff\xff", not_utf8):
        for call in (
            caller.channel.unary_unary("/gpufleet.v1.Scheduler/Submit")(data, metadata=token),
            caller.channel.unary_stream("/gpufleet.v1.Scheduler/Watch")(data, metadata=token),
        ):
            error = await refusal(call)
            assert error.reason is Reason.INVALID_ARGUMENT
            assert "UTF-8" in error.message and error.next_step
    assert await caller.channel.unary_unary("/gpufleet.v1.Scheduler/GetServerInfo")(b"", metadata=token)
