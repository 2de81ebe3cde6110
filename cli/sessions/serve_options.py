"""The options of `serve`: what a model's workers ask for, and the numbers of its line and turns, or of its program.

`serving.py` makes the request of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..options import in_panel

for_worker, for_turn = in_panel("Its workers"), in_panel("The line and the turn")
for_program = in_panel("A program with an HTTP port")
for_predict = in_panel("A class that answers requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What each worker asks for, as it was typed."""

    gpus: Annotated[int | None, for_worker("--gpus", "-g", metavar="N", help="GPUs of each worker.")] = None
    gpu_share: Annotated[
        str | None, for_worker("--gpu-share", metavar="PART", help="A part of a GPU for each worker: 0.5.")
    ] = None
    min_workers: Annotated[
        int | None,
        for_worker("--min", metavar="N", min=0, help="Fewest workers; 0: on demand. 1 by default, 0 in a group."),
    ] = None
    max_workers: Annotated[
        int | None, for_worker("--max", metavar="N", min=1, help="Most workers; as many as --min by default.")
    ] = None
    model_arg: Annotated[
        list[str] | None, for_worker("--model-arg", metavar="NAME=VALUE", help="An argument of the model; repeatable.")
    ] = None
    python: Annotated[
        str | None,
        for_worker(
            "--python",
            metavar="PATH",
            help="The interpreter on the nodes that has gpufleet and what the model needs; the one of this gpuctl.",
        ),
    ] = None
    cwd: Annotated[
        str | None,
        for_worker(
            "--cwd",
            metavar="PATH",
            help="The folder on the nodes where the model's module is found, if it is not installed; this one.",
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        for_worker("--env", "-e", metavar="NAME[=VALUE]", help="Set a variable, or pass yours on, such as PYTHONPATH."),
    ] = None
    secret: Annotated[
        list[str] | None,
        for_worker(
            "--secret", metavar="NAME[=VARIABLE]", help="Give each worker a secret of yours as a variable: HF_TOKEN."
        ),
    ] = None
    min_memory: Annotated[
        str | None, for_worker("--min-memory", metavar="SIZE", help="Memory free on each GPU: 8GB.")
    ] = None
    gpu_model: Annotated[
        list[str] | None, for_worker("--gpu-model", metavar="NAME", help="A part of the GPU's name: h100.")
    ] = None
    image: Annotated[
        str | None,
        for_program(
            "--image",
            metavar="IMAGE",
            help="Run it in a container of this image; what stands behind -- is what the image is run with.",
        ),
    ] = None
    mount: Annotated[
        list[str] | None,
        for_program(
            "--mount",
            metavar="HOST[:PATH][:ro]",
            help="With --image: show a folder of the node, at PATH, to be read alone with :ro. The node's site says "
            "which ones it allows.",
        ),
    ] = None
    image_secret: Annotated[
        str | None,
        for_program(
            "--image-secret",
            metavar="NAME",
            help="With --image: the secret of yours that its registry takes, USER:PASSWORD; see gpuctl secret.",
        ),
    ] = None
    node_gpu_ids: Annotated[
        str | None, for_worker("--node-gpu-ids", metavar="PINS", help='Exactly these GPUs: "node001:0,1".')
    ] = None
    allow_busy: Annotated[
        bool, for_worker("--allow-busy", help="Take also GPUs on which somebody else's process runs.")
    ] = False
    cpus: Annotated[
        int | None, for_worker("--cpus", metavar="N", help="CPUs to reserve; 1 by default, none on virtual GPUs.")
    ] = None
    memory: Annotated[
        str | None, for_worker("--memory", metavar="SIZE", help="Memory of the machine to reserve: 32GB.")
    ] = None
    nodelist: Annotated[list[str] | None, for_worker("--nodelist", metavar="NODE,…", help="Only these nodes.")] = None
    exclude: Annotated[list[str] | None, for_worker("--exclude", metavar="NODE,…", help="None of these nodes.")] = None
    node_label: Annotated[
        list[str] | None, for_worker("--node-label", metavar="NAME=VALUE", help="Only nodes that carry this label.")
    ] = None
    label: Annotated[
        list[str] | None, for_worker("--label", metavar="NAME=VALUE", help="A label of the workers' jobs.")
    ] = None
    band: Annotated[
        str | None, for_worker("--band", metavar="BAND", help="low, normal, high or urgent; high by default.")
    ] = None
    preemptible: Annotated[
        bool,
        for_worker(
            "--preemptible", help="Let a job of a higher band take the place of a worker on which nobody has a turn."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """How a program with an HTTP port is served, as it was typed."""

    port_env: Annotated[
        str | None,
        for_program(
            "--port-env",
            metavar="NAME",
            help='The variable that tells it its port, PORT by default; "$PORT" in its arguments is the port, too.',
        ),
    ] = None
    port: Annotated[
        int | None,
        for_program(
            "--port",
            metavar="N",
            min=1,
            max=65_535,
            help="With --image: the port on which it listens in its container; by default the one that it is told.",
        ),
    ] = None
    ready: Annotated[
        str | None,
        for_program(
            "--ready",
            metavar="PATH",
            help="The path that answers while a replica is well: /health; by default it is well with its port open.",
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        for_program(
            "--concurrency", metavar="N", min=1, help="Requests that a replica takes at a time, 64; further ones wait."
        ),
    ] = None
    target_concurrency: Annotated[
        int | None,
        for_program(
            "--target-concurrency",
            metavar="N",
            min=1,
            help="There is to be a replica for each N requests, 8 by default, up to --max.",
        ),
    ] = None
    target_wait: Annotated[
        str | None,
        for_program(
            "--target-wait", metavar="TIME", help="One more replica where a request has waited for so long, 2s."
        ),
    ] = None
    exclusive_group: Annotated[
        str | None,
        for_program(
            "--exclusive-group",
            metavar="NAME",
            help="Share GPUs with your other programs of this group: who was asked the longest ago sleeps for another.",
        ),
    ] = None
    cpu_model: Annotated[
        str | None,
        for_program(
            "--cpu-model",
            metavar="NAME",
            help="The program that does the same on CPUs, for requests that may do without a GPU.",
        ),
    ] = None
    request_gpu_mode: Annotated[
        str | None,
        for_program(
            "--request-gpu-mode",
            metavar="MODE",
            help="How requests take GPUs that do not say so: required, preferred, never or auto.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """How a class that answers requests is served, as it was typed."""

    predict: Annotated[
        bool, for_predict("--predict", help="The class answers requests, in batches, and draws no frames.")
    ] = False
    max_batch: Annotated[
        str | None,
        for_predict("--max-batch", metavar="N|auto", help="Items of a batch, 32; auto measures how many are best."),
    ] = None
    max_wait: Annotated[
        str | None, for_predict("--max-wait", metavar="TIME", help="How long an item waits for others, 5ms.")
    ] = None
    max_waiting: Annotated[
        int | None,
        for_predict("--max-waiting", metavar="N", min=1, help="Items that wait in a replica, 1,024; more are refused."),
    ] = None
    predict_timeout: Annotated[
        str | None,
        for_predict("--predict-timeout", metavar="TIME", help="A replica whose batch takes longer is replaced, 1m."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """The numbers of the line and the turn, as they were typed. What is left out follows the scheduler's settings."""

    idle: Annotated[
        str | None,
        for_turn(
            "--idle",
            metavar="TIME",
            help="Longest time without input, 20s by default; of a program, without requests above --min, 10m.",
        ),
    ] = None
    turn: Annotated[str | None, for_turn("--turn", metavar="TIME", help="Shortest turn while others wait, 60s.")] = None
    turn_warning: Annotated[
        str | None, for_turn("--turn-warning", metavar="TIME", help="Warning before a turn ends, 15s.")
    ] = None
    grace: Annotated[str | None, for_turn("--grace", metavar="TIME", help="Countdown at the end of a turn, 10s.")] = (
        None
    )
    idle_warning: Annotated[
        str | None, for_turn("--idle-warning", metavar="TIME", help="Warning before the idle limit, 10s.")
    ] = None
    line_length: Annotated[
        int | None, for_turn("--line-length", metavar="N", min=1, help="People that may wait, 10,000.")
    ] = None
    places_per_address: Annotated[
        int | None,
        for_turn(
            "--places-per-address", metavar="N", min=0, help="People of one address that may be there, 3; 0: no limit."
        ),
    ] = None
    seats_per_address: Annotated[
        int | None,
        for_turn(
            "--seats-per-address", metavar="N", min=0, help="Of them, those with a turn at a time; 0, the default: all."
        ),
    ] = None
    access: Annotated[
        str | None, for_turn("--access", metavar="WHO", help="Who may join: open, pass-phrase or login.")
    ] = None
    pass_phrase_file: Annotated[
        str | None,
        for_turn("--pass-phrase-file", metavar="FILE", help="Only who says the phrase in this file may join."),
    ] = None
