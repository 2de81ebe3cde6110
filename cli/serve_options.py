"""The options of `serve`: what a model's workers ask for, and the numbers of its line and turns. `serve_request.py`
makes the request of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

WORKER = "Its workers"
TURNS = "The line and the turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What each worker asks for, as it was typed."""

    gpus: Annotated[
        int | None, Option("--gpus", "-g", metavar="N", rich_help_panel=WORKER, help="GPUs of each worker.")
    ] = None
    gpu_share: Annotated[
        str | None,
        Option("--gpu-share", metavar="PART", rich_help_panel=WORKER, help="A part of a GPU for each worker: 0.5."),
    ] = None
    min_workers: Annotated[
        int,
        Option("--min", metavar="N", min=0, rich_help_panel=WORKER, help="Fewest workers, 1 by default; 0: on demand."),
    ] = 1
    max_workers: Annotated[
        int | None,
        Option("--max", metavar="N", min=1, rich_help_panel=WORKER, help="Most workers; as many as --min by default."),
    ] = None
    model_arg: Annotated[
        list[str] | None,
        Option(
            "--model-arg", metavar="NAME=VALUE", rich_help_panel=WORKER, help="An argument of the model; repeatable."
        ),
    ] = None
    python: Annotated[
        str | None,
        Option(
            "--python",
            metavar="PATH",
            rich_help_panel=WORKER,
            help="The interpreter on the nodes that has gpufleet and what the model needs; the one of this gpuctl.",
        ),
    ] = None
    cwd: Annotated[
        str | None,
        Option(
            "--cwd",
            metavar="PATH",
            rich_help_panel=WORKER,
            help="The folder on the nodes where the model's module is found, if it is not installed; this one.",
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        Option(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            rich_help_panel=WORKER,
            help="Set a variable, or pass yours on, such as PYTHONPATH.",
        ),
    ] = None
    min_memory: Annotated[
        str | None,
        Option("--min-memory", metavar="SIZE", rich_help_panel=WORKER, help="Memory free on each GPU: 8GB."),
    ] = None
    gpu_model: Annotated[
        list[str] | None,
        Option("--gpu-model", metavar="NAME", rich_help_panel=WORKER, help="A part of the GPU's name: h100."),
    ] = None
    node_gpu_ids: Annotated[
        str | None,
        Option("--node-gpu-ids", metavar="PINS", rich_help_panel=WORKER, help='Exactly these GPUs: "node001:0,1".'),
    ] = None
    allow_busy: Annotated[
        bool,
        Option("--allow-busy", rich_help_panel=WORKER, help="Take also GPUs on which somebody else's process runs."),
    ] = False
    cpus: Annotated[
        int | None, Option("--cpus", metavar="N", rich_help_panel=WORKER, help="CPUs to reserve, 1 by default.")
    ] = None
    memory: Annotated[
        str | None,
        Option("--memory", metavar="SIZE", rich_help_panel=WORKER, help="Memory of the machine to reserve: 32GB."),
    ] = None
    nodelist: Annotated[
        list[str] | None, Option("--nodelist", metavar="NODE,…", rich_help_panel=WORKER, help="Only these nodes.")
    ] = None
    exclude: Annotated[
        list[str] | None, Option("--exclude", metavar="NODE,…", rich_help_panel=WORKER, help="None of these nodes.")
    ] = None
    node_label: Annotated[
        list[str] | None,
        Option("--node-label", metavar="NAME=VALUE", rich_help_panel=WORKER, help="Only nodes that carry this label."),
    ] = None
    label: Annotated[
        list[str] | None,
        Option("--label", metavar="NAME=VALUE", rich_help_panel=WORKER, help="A label of the workers' jobs."),
    ] = None
    band: Annotated[
        str | None,
        Option("--band", metavar="BAND", rich_help_panel=WORKER, help="low, normal, high or urgent; high by default."),
    ] = None
    preemptible: Annotated[
        bool,
        Option(
            "--preemptible",
            rich_help_panel=WORKER,
            help="Let a job of a higher band take the place of a worker on which nobody has a turn.",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """The numbers of the line and the turn, as they were typed. What is left out follows the scheduler's settings."""

    idle: Annotated[
        str | None,
        Option("--idle", metavar="TIME", rich_help_panel=TURNS, help="Longest time without input, 20s by default."),
    ] = None
    turn: Annotated[
        str | None,
        Option("--turn", metavar="TIME", rich_help_panel=TURNS, help="Shortest turn while others wait, 60s."),
    ] = None
    turn_warning: Annotated[
        str | None,
        Option("--turn-warning", metavar="TIME", rich_help_panel=TURNS, help="Warning before a turn ends, 15s."),
    ] = None
    grace: Annotated[
        str | None,
        Option("--grace", metavar="TIME", rich_help_panel=TURNS, help="Countdown at the end of a turn, 10s."),
    ] = None
    idle_warning: Annotated[
        str | None,
        Option("--idle-warning", metavar="TIME", rich_help_panel=TURNS, help="Warning before the idle limit, 10s."),
    ] = None
    line_length: Annotated[
        int | None,
        Option("--line-length", metavar="N", min=1, rich_help_panel=TURNS, help="People that may wait, 10,000."),
    ] = None
