"""`serve`: serve a model and see it come up, or end it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.async_client import AsyncClient, connected_async
from gpufleet.fleet.client import connected
from gpufleet.fleet.reading import read
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.fleet.submitting.job_spec import spec_of
from gpufleet.fleet.submitting.option_kinds import gpu_mode_of
from gpufleet.fleet.submitting.requests import OPTION_OF_FIELD, in_options, working_folder
from gpufleet.security.pass_phrases import hash_pass_phrase, read_pass_phrase
from gpufleet.text.cleaning import clean
from gpufleet.text.spelling import did_you_mean
from gpufleet.text.units import counted, parse_duration

from ..errors import FAILED
from ..printing import print_answer
from ..quitting import Left, until_told_to_leave
from ..render.sessions import last_lines, state_of, steady_state_of, why_update_waits
from .predicting import as_program
from .serve_options import PredictOptions, ProgramOptions, TurnOptions, WorkerOptions
from .updating import idle_of_a_program, paths_of, worker_changes


def model_of(
    entry_point: str,
    name: str,
    worker: WorkerOptions,
    turns: TurnOptions,
    environment: Mapping[str, str],
    folder: str,
) -> sessions_pb2.Model:
    """The model to serve, as it was typed. Raises INVALID_ARGUMENT with the option."""
    model = _with_workers(name, worker, environment, folder)
    model.entry_point = entry_point
    model.arguments.update(arguments_of(worker.model_arg or ()))
    model.limits.CopyFrom(limits_of(turns))
    return model


def program_of(
    name: str,
    argv: Sequence[str],
    program: ProgramOptions,
    worker: WorkerOptions,
    turns: TurnOptions,
    environment: Mapping[str, str],
    folder: str,
) -> sessions_pb2.Model:
    """The program to serve, as it was typed. Raises INVALID_ARGUMENT with the option."""
    _check_image(worker, program)
    if worker.model_arg:
        raise invalid("--model-arg", "goes with a model's class only", next_step="Write it behind the program.")
    if turns != replace(TurnOptions(), idle=turns.idle, access=turns.access):
        step = "Leave out all but --idle and --access."
        raise invalid("--turn", "a program has no turns and no line of people", next_step=step)
    # A program of a group has no replica while it sleeps.
    if program.exclusive_group is not None and worker.min_workers is None:
        worker = replace(worker, min_workers=0)
    model = _with_workers(name, worker, environment, folder)
    _add_program(model, argv, program, turns)
    return model


def _add_program(model: sessions_pb2.Model, argv: Sequence[str], program: ProgramOptions, turns: TurnOptions) -> None:
    model.http.SetInParent()  # with an image there may be nothing to say of it
    model.exclusive_group = _group_of(program)
    model.limits.access = _access_of(turns)
    model.http.argv.extend(argv)
    model.http.port_env = program.port_env or ""
    model.http.port = program.port or 0
    model.http.ready_path = program.ready or ""
    model.http.concurrency = program.concurrency or 0
    model.http.target_concurrency = program.target_concurrency or 0
    model.http.cpu_model = program.cpu_model or ""
    if program.request_gpu_mode is not None:
        model.http.gpu_mode = gpu_mode_of("--request-gpu-mode", program.request_gpu_mode)
    _set_duration("--target-wait", program.target_wait, model.http.target_wait)
    _set_duration("--idle", turns.idle, model.http.idle)


def _with_workers(name: str, worker: WorkerOptions, environment: Mapping[str, str], folder: str) -> sessions_pb2.Model:
    """A model with what its workers are and how many there are."""
    least = 1 if worker.min_workers is None else worker.min_workers
    most = worker.max_workers if worker.max_workers is not None else max(1, least)
    if most < least:
        raise invalid("--max", f"{most} is less than --min {least}")
    program = _program_of_a_worker(worker)
    asked = {each.name for each in fields(JobOptions)}
    options = JobOptions(**{name: value for name, value in asdict(worker).items() if name in asked})
    spec = spec_of(options, program, environment, folder)
    spec.ClearField("trace_context")
    if worker.image is not None:
        spec.ClearField("argv")  # its node's own gpufleet is run beside the container
    return sessions_pb2.Model(name=name, worker=spec, min_workers=least, max_workers=most)


def _program_of_a_worker(worker: WorkerOptions) -> list[str]:
    # The interpreter that runs gpuctl is the one that has gpufleet, and, in a project's environment, what the model
    # needs. -P: the folder is searched last, by the worker itself.
    return [worker.python or sys.executable, "-P", "-m", "gpufleet.inference"]


def _check_image(worker: WorkerOptions, program: ProgramOptions) -> None:
    """Raises INVALID_ARGUMENT with the option for what goes with an image alone, or with none."""
    if worker.image is None and program.port is not None:
        step = "Add --image IMAGE, or leave it out and let the program listen on '$PORT'."
        raise invalid("--port", "it is the port in a container, and there is none", next_step=step)
    if worker.image is not None and worker.python is not None:
        raise invalid("--python", "does not go with --image, which has its own", next_step="Leave out one of them.")


def _group_of(program: ProgramOptions) -> str:
    if program.exclusive_group == "":
        step = "Name it: --exclusive-group small; for none leave the option out."
        raise invalid("--exclusive-group", "an empty name is none", next_step=step)
    return program.exclusive_group or ""


def limits_of(turns: TurnOptions) -> sessions_pb2.SessionLimits:
    """The numbers that were named."""
    limits = sessions_pb2.SessionLimits(
        line_length=turns.line_length or 0,
        places_per_address=turns.places_per_address,
        seats_per_address=turns.seats_per_address,
        access=_access_of(turns),
    )
    if turns.pass_phrase_file is not None:
        limits.pass_phrase_hash = hash_pass_phrase(read_pass_phrase(turns.pass_phrase_file))
    for option, text, field in (
        ("--idle", turns.idle, limits.idle),
        ("--turn", turns.turn, limits.turn),
        ("--turn-warning", turns.turn_warning, limits.turn_warning),
        ("--grace", turns.grace, limits.grace),
        ("--idle-warning", turns.idle_warning, limits.idle_warning),
    ):
        _set_duration(option, text, field)
    return limits


def _set_duration(option: str, text: str | None, field: Duration) -> None:
    if text is not None:
        field.FromTimedelta(read(option, parse_duration, text))
        field.SetInParent()


def _access_of(turns: TurnOptions) -> sessions_pb2.ModelAccess.ValueType:
    """Who may join; a pass phrase says it, too."""
    said = turns.access or ("pass-phrase" if turns.pass_phrase_file is not None else "")
    if said and said not in ACCESS:
        raise invalid("--access", f'"{said}" is not one of {", ".join(ACCESS)}{did_you_mean(said, ACCESS)}')
    if turns.pass_phrase_file is not None and said != "pass-phrase":
        raise invalid("--pass-phrase-file", f"does not go with --access {said}", next_step="Leave out one of them.")
    if said == "pass-phrase" and turns.pass_phrase_file is None:
        step = "Write it into a file, and name that: --pass-phrase-file FILE"
        raise invalid("--access", "pass-phrase needs the phrase", next_step=step)
    return ACCESS.get(said, sessions_pb2.MODEL_ACCESS_UNSPECIFIED)


ACCESS = {
    "open": sessions_pb2.MODEL_ACCESS_OPEN,
    "pass-phrase": sessions_pb2.MODEL_ACCESS_PASS_PHRASE,
    "login": sessions_pb2.MODEL_ACCESS_LOGIN,
}


def arguments_of(pairs: Sequence[str]) -> dict[str, str]:
    """The arguments of the model: `steps=32`. Raises INVALID_ARGUMENT."""
    arguments: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise invalid("--model-arg", f'"{pair}" is not NAME=VALUE', next_step="Write it as --model-arg steps=32")
        if name in arguments:
            raise invalid("--model-arg", f"{name} is given twice")
        arguments[name] = value
    return arguments


LOOK_S = 0.25
"""How often it is seen how far the workers are."""

TELL_AFTER_S = 3.0
"""Off a terminal nothing is said of a worker that is ready within this; of another one each change from then on."""

PAGE_SIZE = 1000
OPTION_OF_LIMIT = {
    "min_workers": "--min",
    "max_workers": "--max",
    "arguments": "--model-arg",
    "name": "--name",
    "exclusive_group": "--exclusive-group",
}
OPTION_OF_PROGRAM = {
    "argv": "PROGRAM",
    "port_env": "--port-env",
    "port": "--port",
    "ready_path": "--ready",
    "concurrency": "--concurrency",
    "target_concurrency": "--target-concurrency",
    "target_wait": "--target-wait",
    "cpu_model": "--cpu-model",
    "gpu_mode": "--request-gpu-mode",
    "idle": "--idle",
}


def request_of(
    model: str,
    name: str | None,
    worker: WorkerOptions,
    turns: TurnOptions,
    program: ProgramOptions,
    predict: PredictOptions,
    argv: Sequence[str],
    *,
    update: bool = False,
    rollback: bool = False,
    in_place: bool = False,
) -> sessions_pb2.ServeModelRequest:
    """The request to serve a model from here. Without a name it has the class's, or that of a shipped model."""
    called = name or model.rpartition(":")[2]
    nothing = WorkerOptions(), ProgramOptions(), PredictOptions()
    is_said = bool(argv) or (worker, program, predict) != nothing
    if rollback:
        if update or is_said or turns != TurnOptions():
            step = "Leave out --rollback or the rest."
            raise invalid("--rollback", "it serves what was served before, and nothing else is said", next_step=step)
        return sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name=called), rollback=True, in_place=in_place)
    if update and is_said:
        return _changes(called, argv, worker, turns, program, predict, in_place=in_place)
    if update:
        numbers = sessions_pb2.Model(name=called, limits=limits_of(turns))
        return sessions_pb2.ServeModelRequest(model=numbers, in_place=in_place)
    if worker.image is not None and (predict != PredictOptions() or (":" in model and not argv)):
        step = "Serve a program of the image by a name: gpuctl serve chat --image IMAGE --port 8000"
        raise invalid("--image", "a class runs by an interpreter of its nodes, not from an image", next_step=step)
    if predict != PredictOptions():
        arguments_of(worker.model_arg or ())
        argv, program, worker = as_program(model, called, argv, program, worker, predict)
    if argv or worker.image is not None:
        wanted = program_of(called, argv, program, worker, turns, os.environ, working_folder())
    elif program != ProgramOptions():
        example = f"gpuctl serve {called} --ready /health -- python -m my.server --port '$PORT'"
        raise invalid("PROGRAM", "is missing", next_step=f"Write it behind --, such as: {example}")
    else:
        wanted = model_of(model, called, worker, turns, os.environ, working_folder())
    return sessions_pb2.ServeModelRequest(model=wanted, in_place=in_place)


def _changes(
    name: str,
    argv: Sequence[str],
    worker: WorkerOptions,
    turns: TurnOptions,
    program: ProgramOptions,
    predict: PredictOptions,
    *,
    in_place: bool,
) -> sessions_pb2.ServeModelRequest:
    """The request to change what was typed of a program that is served, and nothing else of it."""
    paths = paths_of(argv, worker, program, turns, predict)
    changes = worker_changes(worker, _program_of_a_worker(worker), os.environ, working_folder())
    changes.name = name
    if program.exclusive_group == "":
        program = replace(program, exclusive_group=None)  # that leaves the group that it is in
    _add_program(changes, argv, program, turns)
    return sessions_pb2.ServeModelRequest(model=changes, in_place=in_place, update_mask=FieldMask(paths=paths))


def stop_model(settings: Settings, name: str) -> None:
    """End a model, and say so."""
    with connected(settings) as client:
        answer = client.call(client.scheduler.StopModel, sessions_pb2.StopModelRequest(name=name))
    line = f"model {name} is stopped: its sessions end, and its workers"
    print_answer(settings.format, answer, name, lambda _: [line])


def serve_model(settings: Settings, request: sessions_pb2.ServeModelRequest, *, waits: bool) -> int:
    """Serve a model and, if asked to, stay until a worker is ready. Answers the exit code."""
    return asyncio.run(_serve(settings, request, waits=waits))


async def _serve(settings: Settings, request: sessions_pb2.ServeModelRequest, *, waits: bool) -> int:
    async with connected_async(settings) as client:
        is_update = request.HasField("update_mask")
        is_new = not is_update and (bool(request.model.entry_point) or request.model.HasField("http"))
        if not is_new:
            # A name that is spelled wrong must not become a model of its own.
            known = await _model(client, request.model.name)
            if known.HasField("http") and not is_update and request.model.limits.HasField("idle"):
                request = idle_of_a_program(request)
        try:
            answer = await client.call(client.scheduler.ServeModel, request)
        except GpufleetError as problem:
            raise in_options(problem, _option_of) from None
        model: sessions_pb2.Model = answer.model
        is_started = bool(model.min_workers or (model.HasField("update") and model.workers))
        if waits and is_started and (is_new or is_update or request.rollback or request.in_place):
            try:
                model = await until_told_to_leave(_until_ready(client, model))
            except Left as left:
                _say(f"left; model {model.name} goes on. See how far it is: gpuctl models")
                return left.code
    _show(settings, model)
    return FAILED if model.HasField("failure") or model.update.HasField("failure") else 0


async def _until_ready(client: AsyncClient, model: sessions_pb2.Model) -> sessions_pb2.Model:
    """The model once a worker is ready and an update done, or once it needs none. Tells meanwhile how far it is.

    A terminal is told each step, a log what lasts for TELL_AFTER_S and what is different from then on. Raises
    MODEL_NOT_LOADED where the model, or its update, has failed.
    """
    told = ""
    is_terminal = sys.stderr.isatty()
    tells_from = asyncio.get_running_loop().time() + (0 if is_terminal else TELL_AFTER_S)
    while True:
        if model.HasField("failure"):
            for line in last_lines(model):
                _say(line)
            raise GpufleetError(
                Reason.MODEL_NOT_LOADED,
                f"model {model.name} has failed: {model.failure.message}",
                next_step=f"See its output: gpuctl logs {model.failure.job_id} · then serve it again.",
            )
        if model.update.HasField("failure"):
            for line in last_lines(model):
                _say(line)
            raise GpufleetError(
                Reason.MODEL_NOT_LOADED,
                f"the update of model {model.name} to revision {model.revision} has failed, and revision "
                f"{model.former_revision} stays: {model.update.failure.message}",
                next_step=f"See its output: gpuctl logs {model.update.failure.job_id} · then serve it again, or leave "
                f"it at that: gpuctl serve {model.name} --rollback",
            )
        is_ready = any(worker.state == inference_pb2.WORKER_STATE_READY for worker in model.workers)
        if is_ready and not model.HasField("update"):
            return model
        if not model.min_workers and not model.workers:
            return model  # the last one went, and only somebody who asks starts another one
        words = state_of(model)[0] if is_terminal else steady_state_of(model)
        if why := why_update_waits(model):
            words += f". {why}"
        if words != told and asyncio.get_running_loop().time() >= tells_from:
            told = words
            _say(clean(f"{model.name}: {words}"))
        await asyncio.sleep(LOOK_S)
        model = await _model(client, model.name)


async def _model(client: AsyncClient, name: str) -> sessions_pb2.Model:
    """The model as it is now. Raises MODEL_NOT_FOUND."""
    request = sessions_pb2.ListModelsRequest(page_size=PAGE_SIZE)
    async for page in client.all_pages(client.scheduler.ListModels, request):
        for model in page.models:
            if model.name == name:
                return model
    raise GpufleetError(Reason.MODEL_NOT_FOUND, f"no model is called '{name}'")


def _show(settings: Settings, model: sessions_pb2.Model) -> None:
    words, _ = state_of(model)
    ready = [each for each in model.workers if each.state == inference_pb2.WORKER_STATE_READY]
    seats = sum(each.seats for each in ready)
    if ready and model.HasField("http"):
        words = f"ready: {counted(len(ready), 'replica')}, at the gateway under /m/{model.name}/"
    elif ready:
        words = f"ready: {counted(len(ready), 'worker')} with {counted(seats, 'seat')}"
    elif not model.min_workers and model.HasField("http"):
        words = f"served: a replica is started by the first request to /m/{model.name}/ at the gateway"
    elif not model.min_workers and model.entry_point:
        words = "served: a worker is started once somebody waits"
    if model.HasField("update") and not model.HasField("failure"):
        words = state_of(model)[0]
    line = f"model {model.name} is {words}" if ready else f"model {model.name}: {words}"
    print_answer(settings.format, model, model.name, lambda _: [line])


def _option_of(field: str) -> str:
    within = field.removeprefix("model.")
    if within == "update_mask":
        return "--update"
    if within in ("rollback", "in_place"):
        return "--" + within.replace("_", "-")
    if within.startswith("worker."):
        within = within.removeprefix("worker.")
        return OPTION_OF_FIELD.get(within, OPTION_OF_FIELD.get(within.partition("[")[0], within))
    if within == "limits.pass_phrase_hash":
        return "--pass-phrase-file"
    if within.startswith("http."):
        return OPTION_OF_PROGRAM.get(within.removeprefix("http."), within)
    if within.startswith("limits."):
        return "--" + within.removeprefix("limits.").replace("_", "-")
    return OPTION_OF_LIMIT.get(within.partition("[")[0], within)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
