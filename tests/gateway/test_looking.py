"""What people see of models, turns and lines from the terminal and over HTTP, while two of them share a seat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gpufleet.v1 import sessions_pb2

from tests.e2e.processes import until
from tests.gateway.stage import Stage, browser
from tests.gateway.test_served import gpuctl
from tests.gateway.test_sessions import _get

NUMBERS = {"idle": 90, "idle_warning": 30, "turn": 120, "turn_warning": 20, "grace": 5}


async def models(stage: Stage) -> dict[str, sessions_pb2.Model]:
    async with stage.fleet.client() as admin:
        listed = await admin.stub.ListModels(sessions_pb2.ListModelsRequest())
        return {model.name: model for model in listed.models}


async def test_turns_and_lines_are_listed_and_closed_from_the_terminal_and_shown_to_who_has_a_token(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    with long_lived("a node beside the stage"):
        await stage.fleet.add_node("n1")
    worker = stage.worker("looked-at", seats="1")
    await worker.is_served()
    async with browser(stage) as ann, browser(stage) as bob:
        await ann.hello("looked-at")
        turn = await ann.text("turn")
        assert turn["worker"].startswith("worker ") and ":" not in turn["worker"], "a name, and not where it is"
        await ann.frame()
        await bob.hello("looked-at")
        await bob.text("place")

        shown = await gpuctl(stage, "sessions", "--model", "looked-at")
        heading, first, second = shown.out.splitlines()
        assert heading.split() == ["SESSION", "MODEL", "STATE", "PLACE", "JOINED", "ENDS", "WORKER"]
        assert first.split()[:4] == [turn["session"], "looked-at", "limited", "–"]
        assert second.split()[1:4] == ["looked-at", "waiting", "1"]
        listed = json.loads((await gpuctl(stage, "sessions", "-o", "json")).out)["sessions"]
        assert [each["state"] for each in listed] == ["SESSION_STATE_LIMITED", "SESSION_STATE_WAITING"]

        token = stage.fleet.scheduler.token("admin")
        answer = await asyncio.to_thread(_get, stage, "/api/v1/status/workers", token)
        status: dict[str, Any] = json.loads(answer.body)
        (model,) = (each for each in status["models"] if each["model"] == "looked-at")
        assert model["request_count"] == 2, "one has a turn, and one waits"
        (told,) = model["workers"]
        assert (told["state"], told["seats"], told["taken_seats"]) == ("WORKER_STATE_READY", 1, 1)
        assert told["endpoint"] == await worker.address() and told["last_contact_time"]
        assert [(node["node"], node["state"]) for node in status["nodes"]] == [("n1", "NODE_STATE_READY")]

        closed = await gpuctl(stage, "sessions", "close", turn["session"], "--reason", "a demo begins")
        assert closed.code == 0, closed.err
        end = await ann.text("end")
        assert end["reason"] == "CLOSED" and "a demo begins" in end["message"]
        assert (await bob.text("turn"))["session"] != turn["session"]
        await bob.say(type="leave")
        await bob.text("end")

    # A worker by hand ends with its model: nobody could join it any more, or see it.
    assert (await gpuctl(stage, "serve", "looked-at", "--stop")).code == 0
    process, worker.process = worker.process, None
    assert process is not None
    await until("the worker has ended by itself", lambda: process.poll() is not None)
    assert process.returncode == 0 and "looked-at" not in await models(stage)


async def test_a_worker_is_drained_from_the_terminal_and_ends_after_its_last_turn(stage: Stage) -> None:
    worker = stage.worker("drained", seats="1")
    await worker.is_served()

    async def is_listed() -> bool:
        return "drained" in await models(stage)

    await until("its model is listed", is_listed)
    (start,) = (each.worker_start for each in (await models(stage))["drained"].workers)
    async with browser(stage) as ann:
        await ann.hello("drained")
        await ann.text("turn")
        await ann.frame()
        drained = await gpuctl(stage, "models", "drain", start[:8], "--model", "drained", "--reason", "a new driver")
        assert drained.out == f"worker {start[:8]} of drained drains; 1 turn on it goes on\n", drained.err

        async def is_draining() -> bool:
            return "draining" in (await gpuctl(stage, "models", "--model", "drained", "-o", "wide")).out

        await until("it is shown as draining", is_draining)
        again = await gpuctl(stage, "models", "drain", start[:8], "--model", "drained")
        assert again.out == f"worker {start[:8]} of drained was draining already\n", again.err
        process, worker.process = worker.process, None
        assert process is not None and process.poll() is None
        await ann.say(type="leave")
        await ann.text("end")
    await until("the worker has ended by itself", lambda: process.poll() is not None)
    assert process.returncode == 0
    gone = await gpuctl(stage, "models", "drain", start[:8])
    assert (gone.code, f'there is no worker "{start[:8]}" now' in gone.err) == (3, True), gone


async def test_every_number_of_a_model_is_named_where_it_is_served_and_changed_alone(stage: Stage) -> None:
    spans = [word for name, seconds in NUMBERS.items() for word in (f"--{name.replace('_', '-')}", f"{seconds}s")]
    own = ("--name", "numbered", "--gpus", "1", "--min", "0", "--max", "3", "--line-length", "7", "--no-wait")
    people = ("--places-per-address", "0", "--seats-per-address", "2")
    served = await gpuctl(stage, "serve", "test-pattern", *own, *people, *spans)
    assert served.code == 0, served.err
    model = (await models(stage))["numbered"]
    assert {name: getattr(model.limits, name).seconds for name in NUMBERS} == NUMBERS
    assert (model.limits.line_length, model.min_workers, model.max_workers) == (7, 0, 3)
    assert (model.limits.places_per_address, model.limits.seats_per_address) == (0, 2)

    changed = await gpuctl(stage, "serve", "numbered", "--update", "--turn-warning", "40s")
    assert changed.code == 0, changed.err
    model = (await models(stage))["numbered"]
    assert {name: getattr(model.limits, name).seconds for name in NUMBERS} == {**NUMBERS, "turn_warning": 40}

    misspelt = await gpuctl(stage, "serve", "numberd", "--update", "--turn", "40s")
    assert (misspelt.code, "no model is called 'numberd'" in misspelt.err) == (3, True), misspelt
    assert "gpuctl models" in misspelt.err
    meant_otherwise = await gpuctl(stage, "serve", "numbered", "--stop", "--turn", "40s")
    assert (meant_otherwise.code, "--stop: " in meant_otherwise.err) == (2, True), meant_otherwise
    listed = await models(stage)
    assert "numberd" not in listed and listed["numbered"] == model
    assert (await gpuctl(stage, "serve", "numbered", "--stop")).code == 0
