"""A class that answers requests, as it is typed to `serve`: it becomes a program of gpufleet's own."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import pytest
from gpufleet.v1 import sessions_pb2

from cli.sessions.predicting import BATCH_DEFAULT, BATCH_MAX, PORT_ENV
from cli.sessions.serve_options import PredictOptions, ProgramOptions, TurnOptions, WorkerOptions
from cli.sessions.serving import request_of
from gpufleet.errors import GpufleetError
from gpufleet.predict import BATCH_MAX as BATCH_MAX_OF_MODELS
from inference.core.batching import BatchLimits
from inference.predict.options import read

TYPED: dict[str, Any] = {"max_batch": "64", "max_wait": "1ms", "max_waiting": 50, "predict_timeout": "10s"}


def model_of(
    predict: PredictOptions,
    worker: WorkerOptions | None = None,
    program: ProgramOptions | None = None,
    *argv: str,
    turns: TurnOptions | None = None,
    entry_point: str = "digits:Digits",
) -> sessions_pb2.Model:
    given = (worker or WorkerOptions(), turns or TurnOptions(), program or ProgramOptions(), predict)
    return request_of(entry_point, None, *given, argv, update=False).model


def test_the_server_is_the_program_and_says_itself_when_it_is_ready() -> None:
    model = model_of(PredictOptions(predict=True), WorkerOptions(gpus=1, model_arg=["weights=a b.pt"], max_workers=4))
    assert (model.name, model.entry_point, model.max_workers) == ("Digits", "", 4)
    http = model.http
    assert list(http.argv[:4]) == [sys.executable, "-P", "-m", "gpufleet.inference.predict"]
    assert (http.ready_path, http.port_env) == ("/v2/health/ready", PORT_ENV)
    assert (http.concurrency, http.target_concurrency) == (128, 64)
    given = read([word.replace(f"${PORT_ENV}", "4242") for word in http.argv[4:]])
    assert (given.wanted.entry_point, given.name, given.port) == ("digits:Digits", "Digits", 4242)
    assert given.wanted.arguments == {"weights": "a b.pt"} and given.limits == BatchLimits()


@pytest.mark.parametrize("option", [each.name for each in fields(PredictOptions) if each.name != "predict"])
def test_every_option_reaches_the_server(option: str) -> None:
    typed = model_of(PredictOptions(predict=True, **{option: TYPED[option]})).http
    limits = read([word.replace(f"${PORT_ENV}", "1") for word in typed.argv[4:]]).limits
    assert limits != BatchLimits()


def test_how_many_requests_a_replica_takes_follows_from_its_batches_unless_it_is_said() -> None:
    assert model_of(PredictOptions(predict=True, max_batch="auto")).http.concurrency == 512
    said = model_of(PredictOptions(predict=True), None, ProgramOptions(concurrency=20)).http
    assert (said.concurrency, said.target_concurrency) == (20, 20)
    assert model_of(PredictOptions(predict=True, max_batch="1")).http.target_concurrency == 8


def test_what_both_programs_know_is_the_same() -> None:
    assert BatchLimits().batch_max == BATCH_DEFAULT and BATCH_MAX == BATCH_MAX_OF_MODELS


@pytest.mark.parametrize(
    "given, words",
    [
        (lambda: model_of(PredictOptions(max_batch="4")), "--max-batch: is for a class that answers requests"),
        (lambda: model_of(PredictOptions(predict=True), None, None, "serve.py"), "--predict: goes with a class"),
        (lambda: model_of(PredictOptions(predict=True), entry_point="digits"), 'MODEL: "digits" is not package'),
        (lambda: model_of(PredictOptions(predict=True, max_batch="0")), '--max-batch: "0" is neither'),
        (lambda: model_of(PredictOptions(predict=True, max_wait="1m")), "--max-wait: must be from 0s to 10s"),
        (lambda: model_of(PredictOptions(predict=True, predict_timeout="5")), "--predict-timeout: "),
        (lambda: model_of(PredictOptions(predict=True), None, ProgramOptions(ready="/")), "--ready: is what --predict"),
        (lambda: model_of(PredictOptions(predict=True), WorkerOptions(model_arg=["x"])), '--model-arg: "x" is not'),
        (
            lambda: model_of(PredictOptions(predict=True), turns=TurnOptions(turn="1m")),
            "--turn: a program has no turns",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_option(given: Any, words: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        given()
    assert str(refused.value).startswith(words) or refused.value.message.startswith(words), refused.value.message
