"""The options of `submit` and `run`: what a job asks for. `job_spec.py` makes the request of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

DEVICES = "Devices and nodes"
PROCESS = "The process"
RULES = "Order, limits and loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What a job asks for, as it was typed."""

    gpus: Annotated[
        int | None,
        Option("--gpus", "-g", metavar="N", rich_help_panel=DEVICES, help="GPUs; none without this option."),
    ] = None
    gpu_share: Annotated[
        str | None,
        Option(
            "--gpu-share",
            metavar="PART",
            rich_help_panel=DEVICES,
            help="A part of a GPU, shared with other jobs: 0.5. With --gpus 2, that part of each of two. Counted and "
            "kept free, but nothing keeps a job within its part yet.",
        ),
    ] = None
    min_memory: Annotated[
        str | None,
        Option(
            "--min-memory",
            metavar="SIZE",
            rich_help_panel=DEVICES,
            help="Memory free on each GPU: 8GB. By default 8GB (a setting), or 90 % of the largest GPU if less; "
            "of a part of a GPU as much as the part.",
        ),
    ] = None
    config: Annotated[
        str | None,
        Option(
            "--config",
            metavar="FILE",
            rich_help_panel=DEVICES,
            help="A model's configuration (JSON): fills --gpus and --min-memory, as gpuctl estimate FILE says.",
        ),
    ] = None
    gpu_model: Annotated[
        list[str] | None,
        Option(
            "--gpu-model",
            metavar="NAME",
            rich_help_panel=DEVICES,
            help="A part of the GPU's name, in any case: h100. Again for another that will do as well.",
        ),
    ] = None
    nodes: Annotated[
        int | None,
        Option(
            "--nodes",
            metavar="N",
            rich_help_panel=DEVICES,
            help="Run one copy of the command on each of N nodes, all at once; the GPUs are divided evenly.",
        ),
    ] = None
    gpus_per_node: Annotated[
        int | None,
        Option("--gpus-per-node", metavar="N", rich_help_panel=DEVICES, help="GPUs on each node, in place of --gpus."),
    ] = None
    no_span: Annotated[
        bool,
        Option(
            "--no-span",
            rich_help_panel=DEVICES,
            help="Refuse what no single node can hold; by default it is spread over as few nodes as hold it.",
        ),
    ] = False
    node_gpu_ids: Annotated[
        str | None,
        Option(
            "--node-gpu-ids",
            metavar="PINS",
            rich_help_panel=DEVICES,
            help='Exactly these GPUs: "node001:0,1", or of several nodes: "node001:0,1;node002:0,1".',
        ),
    ] = None
    allow_busy: Annotated[
        bool,
        Option("--allow-busy", rich_help_panel=DEVICES, help="Take also GPUs on which somebody else's process runs."),
    ] = False
    no_gpu_selection: Annotated[
        bool,
        Option(
            "--no-gpu-selection", rich_help_panel=DEVICES, help="Take GPUs in plain order, whatever their telemetry."
        ),
    ] = False
    cpus: Annotated[
        int | None,
        Option(
            "--cpus",
            metavar="N",
            rich_help_panel=DEVICES,
            help="CPUs to reserve on each node, 1 by default; not a limit.",
        ),
    ] = None
    memory: Annotated[
        str | None,
        Option(
            "--memory",
            metavar="SIZE",
            rich_help_panel=DEVICES,
            help="Memory of each machine to reserve: 32GB; not a limit.",
        ),
    ] = None
    nodelist: Annotated[
        list[str] | None,
        Option("--nodelist", metavar="NODE,…", rich_help_panel=DEVICES, help="Only these nodes."),
    ] = None
    exclude: Annotated[
        list[str] | None,
        Option("--exclude", metavar="NODE,…", rich_help_panel=DEVICES, help="None of these nodes."),
    ] = None
    node_label: Annotated[
        list[str] | None,
        Option(
            "--node-label",
            metavar="NAME=VALUE",
            rich_help_panel=DEVICES,
            help="Only nodes that carry this label; see them with: gpuctl nodes -o wide.",
        ),
    ] = None
    name: Annotated[
        str | None,
        Option("--name", "-n", metavar="NAME", rich_help_panel=PROCESS, help="A name; else that of the program."),
    ] = None
    env: Annotated[
        list[str] | None,
        Option(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            rich_help_panel=PROCESS,
            help="Set a variable, or pass yours on. Of your own only PATH, LANG and TERM go by themselves.",
        ),
    ] = None
    env_all: Annotated[bool, Option("--env-all", rich_help_panel=PROCESS, help="Pass on your whole environment.")] = (
        False
    )
    cwd: Annotated[
        str | None,
        Option(
            "--cwd",
            metavar="PATH",
            rich_help_panel=PROCESS,
            help="The working directory on the node; the one you are in by default.",
        ),
    ] = None
    label: Annotated[
        list[str] | None,
        Option("--label", metavar="NAME=VALUE", rich_help_panel=PROCESS, help="A label, for people and filters."),
    ] = None
    band: Annotated[
        str | None,
        Option("--band", metavar="BAND", rich_help_panel=RULES, help="low, normal, high or urgent; normal by default."),
    ] = None
    hold: Annotated[
        bool, Option("--hold", rich_help_panel=RULES, help="Submit it held: it waits for gpuctl release.")
    ] = False
    time_limit: Annotated[
        str | None,
        Option(
            "--time-limit",
            metavar="TIME",
            rich_help_panel=RULES,
            help="Stop it after this: 90m, 2h30m, 1-12:00:00. No limit by default.",
        ),
    ] = None
    grace: Annotated[
        str | None,
        Option(
            "--grace",
            metavar="TIME",
            rich_help_panel=RULES,
            help="Time between SIGTERM and SIGKILL when it is stopped, 30s by default.",
        ),
    ] = None
    requeue: Annotated[
        bool,
        Option(
            "--requeue/--no-requeue",
            rich_help_panel=RULES,
            help="Run it again when its node is lost, which is the default, or not.",
        ),
    ] = True
    requeue_fence: Annotated[
        str | None,
        Option(
            "--requeue-fence",
            metavar="TIME",
            rich_help_panel=RULES,
            help="How long a node must be silent before its job runs elsewhere, 10m by default.",
        ),
    ] = None
    after: Annotated[
        list[str] | None,
        Option(
            "--after",
            metavar="ID[:ok|any|fail],…",
            rich_help_panel=RULES,
            help="Run it after another job's success (ok, by default), end (any) or failure (fail).",
        ),
    ] = None
    array: Annotated[
        str | None,
        Option(
            "--array",
            metavar="INDICES[%N]",
            rich_help_panel=RULES,
            help="An item for each index (1-100, 1,3,5-9, 0-30:10), N at a time. It is in GPUFLEET_ARRAY_INDEX.",
        ),
    ] = None
    max_fails: Annotated[
        int | None,
        Option(
            "--max-fails",
            metavar="N",
            rich_help_panel=RULES,
            help="Cancel the items that wait once N have failed.",
        ),
    ] = None
    begin: Annotated[
        str | None,
        Option(
            "--begin",
            metavar="TIME",
            rich_help_panel=RULES,
            help="Not before this time: 18:30, 2026-01-31T18:30, or 2h from now.",
        ),
    ] = None
    queue_timeout: Annotated[
        str | None,
        Option(
            "--queue-timeout",
            metavar="TIME",
            rich_help_panel=RULES,
            help="Give up when it has waited for so long: 2h. It waits for ever by default.",
        ),
    ] = None
    retries: Annotated[
        int,
        Option(
            "--retries",
            metavar="N",
            rich_help_panel=RULES,
            help="Try again after a failing exit code or a signal, so many times; losses of nodes count apart.",
        ),
    ] = 0
    sample_every: Annotated[
        str | None,
        Option(
            "--sample-every",
            metavar="TIME",
            rich_help_panel=PROCESS,
            help="How often what it uses is read for gpuctl stats, 200ms to 60s; 1s by default.",
        ),
    ] = None
    preemptible: Annotated[
        bool,
        Option(
            "--preemptible",
            rich_help_panel=RULES,
            help="Let a job of a higher band take its place once it has run for 5 minutes; it is queued again.",
        ),
    ] = False
    blame_limit: Annotated[
        int | None,
        Option(
            "--blame-limit",
            metavar="N",
            rich_help_panel=RULES,
            help="Give up when it has lost so many nodes; 3 unless the scheduler says otherwise.",
        ),
    ] = None
    notify: Annotated[
        str | None,
        Option(
            "--notify",
            metavar="CMD|URL",
            rich_help_panel=RULES,
            help="Run CMD on the job's node, or POST to URL, at start, end, warnings, 80 and 90 % of the time limit.",
        ),
    ] = None
    no_warnings: Annotated[
        bool,
        Option(
            "--no-warnings",
            rich_help_panel=RULES,
            help="Do not warn of idle or slow GPUs, unused memory or the time limit.",
        ),
    ] = False
