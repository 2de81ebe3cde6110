"""The options of `submit` and `run`: what a job asks for, and the one table of what each does.

A line says the option, its panel and its help, which field of the spec it sets, and how: of what kind it is. What a
kind reads and shows is in `option_kinds.py`; `job_spec.py` makes the request of all of them, and the line that submits
a job again; `submission.py` names the option where the scheduler refuses its field. Nothing heavy is imported here:
`--help` reads this table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum, auto
from typing import Annotated, NamedTuple

from gpufleet.fleet.submitting.typed_options import hints_of, in_panel
from gpufleet.jobs.runs import DEFAULT_GRACE_US

device, process, rule = in_panel("Devices and nodes"), in_panel("The process"), in_panel("Order, limits and loss")

DEFAULT_GRACE = timedelta(microseconds=DEFAULT_GRACE_US)
GRACE_HINT = "Write the time between SIGTERM and SIGKILL as 30s or 5m, a day at most."


class OptionKind(Enum):
    """How what was typed becomes a field of the spec, and is shown again."""

    FLAG = auto()
    """It is said or not."""
    NO_FLAG = auto()
    """A flag that is set without it: `--no-requeue`."""
    TEXT = auto()
    NUMBER = auto()
    """0 or more."""
    COUNT = auto()
    """1 or more."""
    SIZE = auto()
    """Bytes, typed as 8GB."""
    SPAN = auto()
    """A duration, typed as 90m."""
    TIME = auto()
    """A moment, typed as 18:30 or as a span from now."""
    NAMES = auto()
    """Names, separated by commas or repeated."""
    PAIRS = auto()
    """NAME=VALUE, repeated."""
    BAND = auto()
    GPU_MODE = auto()
    COMMAND = auto()
    """A program and its arguments, quoted as for a shell."""
    SIGNAL = auto()
    AFTER = auto()
    RLIMITS = auto()
    FILES = auto()
    INPUTS = auto()
    """JOB:PATTERN or JOB:PATTERN=NAME, repeated."""
    LINES = auto()
    """Lines as they are, repeated."""
    FOLDER = auto()
    """One that was uploaded; one of this machine is described before: see input_folder.py."""
    MOUNTS = auto()
    SECRETS = auto()
    """NAME or NAME=VARIABLE, repeated."""
    OWN = auto()
    """Read together with others, by job_spec.py."""


class Sets(NamedTuple):
    """Which field of a JobSpec an option sets, by its path in a refusal, and how.

    `usual` is what the scheduler fills in where nothing is said, so that it is not shown; `hint` the next step for a
    value that cannot be read; without `is_repeated` the line that submits a job again leaves it out.
    """

    field: str
    kind: OptionKind
    usual: object = None
    hint: str = ""
    is_repeated: bool = True


class JobOption(NamedTuple):
    """A line of the table: the attribute of JobOptions, the option as it is typed, and what it sets."""

    name: str
    flag: str
    sets: Sets
    default: object


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What a job asks for, as it was typed."""

    gpus: Annotated[
        int | None,
        device("--gpus", "-g", metavar="N", help="GPUs; 0 is none, as without this option."),
        Sets("devices[0].count", OptionKind.OWN),
    ] = None
    gpu_mode: Annotated[
        str | None,
        device(
            "--gpu-mode",
            metavar="MODE",
            help="required: wait for the GPUs, as by default. preferred: run without rather than wait for long. "
            "never: none. auto: by --content-type.",
        ),
        Sets("gpu_mode", OptionKind.GPU_MODE, usual="required"),
    ] = None
    content_type: Annotated[
        str | None,
        device("--content-type", metavar="TYPE", help="What it works on: audio/mpeg. What --gpu-mode auto decides by."),
        Sets("content_type", OptionKind.TEXT, hint="Write it as audio/mpeg, or leave it out."),
    ] = None
    cpu_command: Annotated[
        str | None,
        device(
            "--cpu-command",
            metavar="LINE",
            help="What runs in place of the command where the job has no GPU: './transcribe-small talk.mp3'. Words are "
            "quoted as for a shell.",
        ),
        Sets("cpu_argv", OptionKind.COMMAND, hint="Write it as './transcribe-small talk.mp3', or leave it out."),
    ] = None
    gpu_share: Annotated[
        str | None,
        device(
            "--gpu-share",
            metavar="PART",
            help="A part of a GPU, shared with other jobs: 0.5. With --gpus 2, that part of each of two. Counted and "
            "kept free, but nothing keeps a job within its part yet.",
        ),
        Sets("devices[0].share", OptionKind.OWN),
    ] = None
    min_memory: Annotated[
        str | None,
        device(
            "--min-memory",
            metavar="SIZE",
            help="Memory free on each GPU: 8GB. By default 8GB (a setting), or 90 % of the largest GPU if less; "
            "of a part of a GPU as much as the part.",
        ),
        Sets("devices[0].min_memory_bytes", OptionKind.OWN),
    ] = None
    config: Annotated[
        str | None,
        device(
            "--config",
            metavar="FILE",
            help="A model's configuration (JSON): fills --gpus and --min-memory, as gpuctl estimate FILE says.",
        ),
    ] = None
    gpu_model: Annotated[
        list[str] | None,
        device(
            "--gpu-model",
            metavar="NAME",
            help="A part of the GPU's name, in any case: h100. Again for another that will do as well.",
        ),
        Sets("devices[0].models", OptionKind.OWN),
    ] = None
    nodes: Annotated[
        int | None,
        device(
            "--nodes",
            metavar="N",
            help="Run one copy of the command on each of N nodes, all at once; the GPUs are divided evenly.",
        ),
        Sets("node_count", OptionKind.OWN),
    ] = None
    gpus_per_node: Annotated[
        int | None,
        device("--gpus-per-node", metavar="N", help="GPUs on each node, in place of --gpus."),
        Sets("devices[0].per_node_count", OptionKind.OWN),
    ] = None
    no_span: Annotated[
        bool,
        device(
            "--no-span",
            help="Refuse what no single node can hold; by default it is spread over as few nodes as hold it.",
        ),
        Sets("no_span", OptionKind.FLAG),
    ] = False
    node_gpu_ids: Annotated[
        str | None,
        device(
            "--node-gpu-ids",
            metavar="PINS",
            help='Exactly these GPUs: "node001:0,1", or of several nodes: "node001:0,1;node002:0,1".',
        ),
        Sets("pins", OptionKind.OWN),
    ] = None
    allow_busy: Annotated[
        bool,
        device("--allow-busy", help="Take also GPUs on which somebody else's process runs."),
        Sets("devices[0].allow_busy", OptionKind.OWN),
    ] = False
    no_gpu_selection: Annotated[
        bool,
        device("--no-gpu-selection", help="Take GPUs in plain order, whatever their telemetry."),
        Sets("no_gpu_selection", OptionKind.FLAG),
    ] = False
    cpus: Annotated[
        int | None,
        device(
            "--cpus", metavar="N", help="CPUs to reserve on each node, 1 by default; nodes may hold the job to them."
        ),
        Sets("cpus", OptionKind.COUNT, usual=1),
    ] = None
    memory: Annotated[
        str | None,
        device(
            "--memory", metavar="SIZE", help="Memory of each machine to reserve: 32GB; nodes may hold the job to it."
        ),
        Sets("memory_bytes", OptionKind.SIZE),
    ] = None
    nodelist: Annotated[
        list[str] | None,
        device("--nodelist", metavar="NODE,…", help="Only these nodes."),
        Sets("nodelist", OptionKind.NAMES),
    ] = None
    exclude: Annotated[
        list[str] | None,
        device("--exclude", metavar="NODE,…", help="None of these nodes."),
        Sets("exclude", OptionKind.NAMES),
    ] = None
    node_label: Annotated[
        list[str] | None,
        device(
            "--node-label",
            metavar="NAME=VALUE",
            help="Only nodes that carry this label; see them with: gpuctl nodes -o wide.",
        ),
        Sets("node_labels", OptionKind.PAIRS),
    ] = None
    name: Annotated[
        str | None,
        process("--name", "-n", metavar="NAME", help="A name; else that of the program."),
        Sets("name", OptionKind.OWN),
    ] = None
    env: Annotated[
        list[str] | None,
        process(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            help="Set a variable, or pass yours on. Of your own only PATH, LANG and TERM go by themselves.",
        ),
        Sets("env", OptionKind.OWN),
    ] = None
    env_all: Annotated[
        bool, process("--env-all", help="Pass on your whole environment."), Sets("env", OptionKind.OWN)
    ] = False
    secret: Annotated[
        list[str] | None,
        process(
            "--secret",
            metavar="NAME[=VARIABLE]",
            help="Give the process a secret of yours as a variable, of the same name by default: see gpuctl secret.",
        ),
        Sets("secrets", OptionKind.SECRETS),
    ] = None
    cwd: Annotated[
        str | None,
        process(
            "--cwd",
            metavar="PATH",
            help="The working directory on the node; the one you are in by default.",
        ),
        Sets("cwd", OptionKind.OWN),
    ] = None
    file: Annotated[
        list[str] | None,
        process(
            "--file",
            metavar="PATH[=NAME]",
            help="A file that goes with it, or a folder of files. They lie on the node in a folder of their own, "
            "$GPUFLEET_FILES, which is its working directory without --cwd.",
        ),
        Sets("files", OptionKind.FILES),
    ] = None
    upload: Annotated[
        str | None,
        process(
            "--upload",
            metavar="FOLDER",
            help="A folder that goes with it, as it is now: $GPUFLEET_FILES there, which is its working directory "
            "without --cwd. .gitignore and .gpufleetignore say what stays here; only what is new is sent.",
        ),
        Sets("folder", OptionKind.FOLDER),
    ] = None
    download: Annotated[
        list[str] | None,
        process(
            "--download",
            metavar="PATTERN",
            help="What of its folder is stored when it has ended, written as in a .gitignore: 'out/**'. Again for "
            "more. gpuctl run brings it here, and gpuctl cp does.",
        ),
        Sets("results", OptionKind.LINES),
    ] = None
    keep: Annotated[
        list[str] | None,
        process(
            "--keep",
            metavar="PATTERN",
            help="Files of its folder that the next attempt finds again, written as in a .gitignore: 'ckpt/**'; "
            "repeatable.",
        ),
        Sets("keep", OptionKind.LINES),
    ] = None
    input: Annotated[
        list[str] | None,
        process(
            "--input",
            metavar="JOB:PATTERN",
            help="Files that another job left, in its folder: '41:out/**'; of an item, in a folder called models: "
            "'41.3:*.pt=models'. It waits for that job's success, as with --after. Repeatable.",
        ),
        Sets("inputs", OptionKind.INPUTS),
    ] = None
    requirements: Annotated[
        str | None,
        process(
            "--requirements",
            metavar="FILE",
            help="A requirements file of its folder: the job begins in a Python environment that has them, by pip. A "
            "node makes it once for the same file.",
        ),
        Sets("environment.requirements", OptionKind.TEXT, hint="Name a file of the folder, such as requirements.txt."),
    ] = None
    uv: Annotated[
        bool,
        process("--uv", help="The same by uv, of pyproject.toml and uv.lock in its folder."),
        Sets("environment.uv", OptionKind.FLAG),
    ] = False
    conda: Annotated[
        str | None,
        process("--conda", metavar="FILE", help="The same by conda, of an environment file of its folder."),
        Sets("environment.conda", OptionKind.TEXT, hint="Name a file of the folder, such as environment.yml."),
    ] = None
    setup: Annotated[
        str | None,
        process(
            "--setup",
            metavar="LINE",
            help="The same by a line for the shell, in a copy of its folder: 'uv sync'. Yours alone, and made anew "
            "when anything in the folder changes.",
        ),
        Sets("environment.setup", OptionKind.TEXT, hint="Write it as 'uv sync', or leave it out."),
    ] = None
    image: Annotated[
        str | None,
        process(
            "--image",
            metavar="IMAGE",
            help="Run it in a container of this image: nvcr.io/nvidia/pytorch:25.10-py3. The folder of --upload is its "
            "working directory; nothing else of the node is in it.",
        ),
        Sets("container.image", OptionKind.TEXT, hint="Name an image, such as ubuntu:24.04."),
    ] = None
    mount: Annotated[
        list[str] | None,
        process(
            "--mount",
            metavar="HOST[:PATH][:ro]",
            help="With --image: show a folder of the node, at PATH, to be read alone with :ro. The node's site says "
            "which ones it allows.",
        ),
        Sets("container.mounts", OptionKind.MOUNTS),
    ] = None
    image_secret: Annotated[
        str | None,
        process(
            "--image-secret",
            metavar="NAME",
            help="With --image: the secret of yours that its registry takes, USER:PASSWORD; see gpuctl secret.",
        ),
        Sets("container.image_secret", OptionKind.TEXT, hint="Name a secret of yours: gpuctl secret list."),
    ] = None
    output_file: Annotated[
        str | None,
        process(
            "--output-file",
            metavar="PATTERN",
            help="Append a copy of its output to this file on the node: train-%j.log. %j job, %A array, %a index, "
            "%x name, %N node, %t rank, %u user.",
        ),
        Sets("output_file", OptionKind.TEXT, hint="Name a file, such as train-%j.log, or leave it out."),
    ] = None
    nice: Annotated[
        int,
        process(
            "--nice",
            metavar="N",
            help="Niceness of its processes, 0 to 19: how much they give way to others of the node.",
        ),
        Sets("process.nice", OptionKind.NUMBER),
    ] = 0
    rlimit: Annotated[
        list[str] | None,
        process(
            "--rlimit",
            metavar="NAME=SOFT[:HARD]",
            help="A limit of the kernel's for its processes: NOFILE=4096, CORE=unlimited, AS=8GB:16GB.",
        ),
        Sets("process.rlimits", OptionKind.RLIMITS),
    ] = None
    label: Annotated[
        list[str] | None,
        process("--label", metavar="NAME=VALUE", help="A label, for people and filters."),
        Sets("labels", OptionKind.PAIRS),
    ] = None
    band: Annotated[
        str | None,
        rule("--band", metavar="BAND", help="low, normal, high or urgent; normal by default."),
        Sets("band", OptionKind.BAND),
    ] = None
    group: Annotated[
        str | None,
        rule("--group", metavar="NAME", help="The group that it is of, one that you are in; your first by default."),
        Sets("group", OptionKind.TEXT, hint="See your groups with: gpuctl group list."),
    ] = None
    hold: Annotated[
        bool,
        rule("--hold", help="Submit it held: it waits for gpuctl release, also in run."),
        Sets("is_held", OptionKind.FLAG, is_repeated=False),
    ] = False
    time_limit: Annotated[
        str | None,
        rule("--time-limit", metavar="TIME", help="Stop it after this: 90m, 2h30m, 1-12:00:00. No limit by default."),
        Sets("time_limit", OptionKind.SPAN),
    ] = None
    grace: Annotated[
        str | None,
        rule(
            "--grace",
            metavar="TIME",
            help=f"Time between SIGTERM and SIGKILL when it is stopped, {DEFAULT_GRACE.seconds}s by default.",
        ),
        Sets("grace", OptionKind.SPAN, usual=DEFAULT_GRACE, hint=GRACE_HINT),
    ] = None
    signal: Annotated[
        str | None,
        rule(
            "--signal",
            metavar="SIGNAL[@TIME]",
            help="Send it this signal before its time limit, USR1@5m; 60s before without a time. To every process of "
            "the job, or with B:USR1@5m to the one that was started.",
        ),
        Sets("limit_signal", OptionKind.SIGNAL),
    ] = None
    requeue_on_timeout: Annotated[
        bool,
        rule(
            "--requeue-on-timeout",
            help="Queue it again where its time limit would end it, for jobs that go on from a checkpoint.",
        ),
        Sets("requeue_on_timeout", OptionKind.FLAG),
    ] = False
    requeue: Annotated[
        bool,
        rule("--requeue/--no-requeue", help="Run it again when its node is lost, which is the default, or not."),
        Sets("no_requeue", OptionKind.NO_FLAG),
    ] = True
    requeue_fence: Annotated[
        str | None,
        rule(
            "--requeue-fence",
            metavar="TIME",
            help="How long a node must be silent before its job runs elsewhere, 10m by default.",
        ),
        Sets("requeue_fence", OptionKind.SPAN),
    ] = None
    after: Annotated[
        list[str] | None,
        rule(
            "--after",
            metavar="ID[:ok|any|fail],…",
            help="Run it after another job's success (ok, by default), end (any) or failure (fail).",
        ),
        Sets("after", OptionKind.AFTER),
    ] = None
    array: Annotated[
        str | None,
        rule(
            "--array",
            metavar="INDICES[%N]",
            help="An item for each index (1-100, 1,3,5-9, 0-30:10), N at a time. It is in GPUFLEET_ARRAY_INDEX.",
        ),
        Sets("array", OptionKind.OWN),
    ] = None
    max_fails: Annotated[
        int | None,
        rule("--max-fails", metavar="N", help="Cancel the items that wait once N have failed."),
        Sets("array.max_fails", OptionKind.OWN),
    ] = None
    begin: Annotated[
        str | None,
        rule("--begin", metavar="TIME", help="Not before this time: 18:30, 2026-01-31T18:30, or 2h from now."),
        Sets("begin_time", OptionKind.TIME, is_repeated=False),
    ] = None
    queue_timeout: Annotated[
        str | None,
        rule(
            "--queue-timeout",
            metavar="TIME",
            help="Give up when it has waited for so long: 2h. It waits for ever by default. Rests while it is held, "
            "and counts from its release.",
        ),
        Sets("queue_timeout", OptionKind.SPAN),
    ] = None
    retries: Annotated[
        int,
        rule(
            "--retries",
            metavar="N",
            help="Try again after a failing exit code or a signal, so many times; losses of nodes count apart.",
        ),
        Sets("retries", OptionKind.NUMBER),
    ] = 0
    sample_every: Annotated[
        str | None,
        process(
            "--sample-every",
            metavar="TIME",
            help="How often what it uses is read for gpuctl stats, 200ms to 60s; 1s by default.",
        ),
        Sets("sampling_interval", OptionKind.SPAN),
    ] = None
    preemptible: Annotated[
        bool,
        rule(
            "--preemptible",
            help="Let a job of a higher band take its place once it has run for 5 minutes; it is queued again.",
        ),
        Sets("is_preemptible", OptionKind.FLAG),
    ] = False
    blame_limit: Annotated[
        int | None,
        rule(
            "--blame-limit",
            metavar="N",
            help="Give up when it has lost so many nodes; 3 unless the scheduler says otherwise.",
        ),
        Sets("blame_limit", OptionKind.COUNT),
    ] = None
    notify: Annotated[
        str | None,
        rule(
            "--notify",
            metavar="CMD|URL",
            help="Run CMD on the job's node, or POST to URL, at start, end, warnings, 80 and 90 % of the time limit.",
        ),
        Sets("notify", OptionKind.TEXT, hint="Give a command or a URL, or leave it out."),
    ] = None
    no_warnings: Annotated[
        bool,
        rule("--no-warnings", help="Do not warn of idle or slow GPUs, unused memory or the time limit."),
        Sets("no_warnings", OptionKind.FLAG),
    ] = False


@functools.cache
def option_table() -> tuple[JobOption, ...]:
    """The options that set a field, in their order; --config sets others before."""
    hints = hints_of(JobOptions)
    return tuple(
        JobOption(each.name, _flag(option.flags[0], sets), sets, each.default)
        for each in fields(JobOptions)
        for option, *rest in [hints[each.name].__metadata__]
        for sets in rest
    )


def _flag(declared: str, sets: Sets) -> str:
    shown, _, negated = declared.partition("/")
    return negated if sets.kind is OptionKind.NO_FLAG else shown


@functools.cache
def option_of_field() -> dict[str, str]:
    """The option that sets a field, by the field's path as the scheduler names it."""
    found: dict[str, str] = {}
    for each in option_table():
        found.setdefault(each.sets.field, each.flag)
    return found
