"""`serve`: serve a model and see it come up, or end it."""

from __future__ import annotations

import asyncio
import os
import sys

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from .async_client import AsyncClient, connected_async
from .client import connected
from .errors import FAILED
from .leaving import Left, until_told_to_leave
from .render.as_json import print_message
from .render.sessions import last_lines, state_of
from .render.table import clean
from .render.words import counted
from .serve_options import TurnOptions, WorkerOptions
from .serve_request import limits_of, model_of
from .settings import Settings
from .submission import OPTION_OF_FIELD, in_options, working_folder

LOOK_S = 0.25
"""How often it is seen how far the workers are."""

PAGE_SIZE = 1000
OPTION_OF_LIMIT = {"min_workers": "--min", "max_workers": "--max", "arguments": "--model-arg", "name": "--name"}


def request_of(
    model: str, name: str | None, worker: WorkerOptions, turns: TurnOptions, *, update: bool
) -> sessions_pb2.ServeModelRequest:
    """The request to serve a model from here. Without a name it has the class's, or that of a shipped model."""
    called = name or model.rpartition(":")[2]
    if update:
        if worker != WorkerOptions():
            raise invalid("--update", "it changes the numbers of the line and the turn only", next_step="Leave it out.")
        return sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name=called, limits=limits_of(turns)))
    wanted = model_of(model, called, worker, turns, os.environ, working_folder())
    return sessions_pb2.ServeModelRequest(model=wanted)


def stop_model(settings: Settings, name: str) -> None:
    """End a model, and say so."""
    with connected(settings) as client:
        answer = client.call(client.scheduler.StopModel, sessions_pb2.StopModelRequest(name=name))
    if settings.format in ("json", "jsonl"):
        print_message(answer, settings.format)
    else:
        print(name if settings.format == "name" else f"model {name} is stopped: its sessions end, and its workers")


def serve_model(settings: Settings, request: sessions_pb2.ServeModelRequest, *, waits: bool) -> int:
    """Serve a model and, if asked to, stay until a worker is ready. Answers the exit code."""
    return asyncio.run(_serve(settings, request, waits=waits))


async def _serve(settings: Settings, request: sessions_pb2.ServeModelRequest, *, waits: bool) -> int:
    async with connected_async(settings) as client:
        if not request.model.entry_point:
            await _model(client, request.model.name)  # a name that is spelled wrong must not become a model of its own
        try:
            answer = await client.call(client.scheduler.ServeModel, request)
        except GpufleetError as problem:
            raise in_options(problem, _option_of) from None
        model: sessions_pb2.Model = answer.model
        if waits and request.model.entry_point and model.min_workers:
            try:
                model = await until_told_to_leave(_until_ready(client, model))
            except Left as left:
                _say(f"left; model {model.name} goes on. See how far it is: gpuctl models")
                return left.code
    _show(settings, model)
    return FAILED if model.HasField("failure") else 0


async def _until_ready(client: AsyncClient, model: sessions_pb2.Model) -> sessions_pb2.Model:
    """The model once a worker is ready, or once it has failed. How far it is, is told on a terminal."""
    told = ""
    while True:
        if model.HasField("failure"):
            for line in last_lines(model):
                _say(line)
            raise GpufleetError(
                Reason.MODEL_NOT_LOADED,
                f"model {model.name} has failed: {model.failure.message}",
                next_step=f"See its output: gpuctl logs {model.failure.job_id} · then serve it again.",
            )
        if any(worker.state == inference_pb2.WORKER_STATE_READY for worker in model.workers):
            return model
        words, _ = state_of(model)
        if words != told and sys.stderr.isatty():
            told = words
            _say(clean(f"{model.name}: {words}"))
        await asyncio.sleep(LOOK_S)
        model = await _model(client, model.name)


async def _model(client: AsyncClient, name: str) -> sessions_pb2.Model:
    """The model as it is now. Raises MODEL_NOT_FOUND."""
    request = sessions_pb2.ListModelsRequest(page_size=PAGE_SIZE)
    while True:
        page = await client.call(client.scheduler.ListModels, request)
        for model in page.models:
            if model.name == name:
                found: sessions_pb2.Model = model
                return found
        if not page.next_page_token:
            raise GpufleetError(Reason.MODEL_NOT_FOUND, f"no model is called '{name}'")
        request.page_token = page.next_page_token


def _show(settings: Settings, model: sessions_pb2.Model) -> None:
    match settings.format:
        case "json" | "jsonl" as form:
            print_message(model, form)
        case "name":
            print(model.name)
        case _:
            words, _ = state_of(model)
            ready = [each for each in model.workers if each.state == inference_pb2.WORKER_STATE_READY]
            seats = sum(each.seats for each in ready)
            if ready:
                words = f"ready: {counted(len(ready), 'worker')} with {counted(seats, 'seat')}"
            elif not model.min_workers and model.entry_point:
                words = "served: a worker is started once somebody waits"
            print(f"model {model.name} is {words}" if ready else f"model {model.name}: {words}")


def _option_of(field: str) -> str:
    within = field.removeprefix("model.")
    if within.startswith("worker."):
        within = within.removeprefix("worker.")
        return OPTION_OF_FIELD.get(within, OPTION_OF_FIELD.get(within.partition("[")[0], within))
    if within.startswith("limits."):
        return "--" + within.removeprefix("limits.").replace("_", "-")
    return OPTION_OF_LIMIT.get(within.partition("[")[0], within)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
