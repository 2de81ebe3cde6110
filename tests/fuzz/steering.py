"""Calls that would end what is being fuzzed, or do something to this machine: how each is steered, and why.

No call is left out: a steered one is asked with every other field as it comes, and of whom it may not harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.messages import Steer

NODE = "n1"
"""The fleet's one node."""
MODEL, PROGRAM = "pattern", "answers"
"""The model and the program that are served all the time."""

STRANGE_NODES = tuple(f"strange-{number}" for number in range(8))
STRANGE_MODELS = tuple(f"strange-{number}" for number in range(6))


@dataclass(frozen=True, slots=True)
class Steered:
    """How a call is steered, and what would happen otherwise."""

    why: str
    steer: Steer


def _runs_true(message: Any, random: Random) -> None:
    for spec in message.specs:
        _harmless(spec, random)


def _serves_strange(message: Any, random: Random) -> None:
    if message.HasField("model"):
        message.model.name = _other(message.model.name, MODEL, PROGRAM, random.choice(STRANGE_MODELS))
        if message.model.HasField("worker"):
            _harmless(message.model.worker, random)
        if message.model.HasField("http"):
            message.model.http.argv[:] = ["true"]


def _harmless(spec: Any, random: Random) -> None:
    if spec.argv:
        spec.argv[:] = ["true"]
    spec.output_file = random.choice(("", "", "out-%j.txt", "\0", "/nowhere/x"))
    spec.notify = random.choice(("", "", "http://127.0.0.1:1/", "mailto:a", "☃"))
    spec.cwd = random.choice(("", "/", "/nowhere", "relative"))


def _spares(field: str, *spared: str, instead: tuple[str, ...]) -> Steer:
    def steer(message: Any, random: Random) -> None:
        if getattr(message, field) in spared:
            setattr(message, field, random.choice(instead))

    return steer


def _other(name: str, *spared_then_instead: str) -> str:
    *spared, instead = spared_then_instead
    return instead if name in spared else name


def _is_another_node(message: Any, random: Random) -> None:
    if message.node == NODE:
        message.node = random.choice(STRANGE_NODES)


def _is_another_worker(message: Any, random: Random) -> None:
    if message.HasField("hello"):
        message.hello.model = _other(message.hello.model, MODEL, PROGRAM, random.choice(STRANGE_MODELS))


def _keeps_log(message: Any, random: Random) -> None:
    message.log_level = random.choice(("", "debug", "info", "☃", "loud"))


STEERED: Mapping[str, Steered] = {
    "Scheduler/Submit": Steered("it would run what it is given: it runs `true`, and writes no file", _runs_true),
    "Scheduler/ServeModel": Steered("it would run what it is given, and change what is served", _serves_strange),
    "Scheduler/StopModel": Steered(
        "nothing would be served any more", _spares("name", MODEL, PROGRAM, instead=STRANGE_MODELS)
    ),
    "Scheduler/UpdateNode": Steered(
        "the only node would drain, and no job run", _spares("node", NODE, instead=STRANGE_NODES)
    ),
    "Scheduler/ForgetNode": Steered(
        "the only node would be forgotten with its jobs", _spares("node", NODE, instead=STRANGE_NODES)
    ),
    "Scheduler/RevokeNode": Steered(
        "the only node would be shut out, and no job run", _spares("node", NODE, instead=STRANGE_NODES)
    ),
    "Scheduler/UpdateServer": Steered("logs of errors alone would hide what is looked for", _keeps_log),
    "Scheduler/ConnectWorker": Steered(
        "any worker token may say that it serves the model: people would be sent to nowhere", _is_another_worker
    ),
    "NodeAgent/Register": Steered("an agent's token may speak for any node: jobs would go nowhere", _is_another_node),
    "NodeAgent/Heartbeat": Steered("the newest stream of a node is believed: the true one would end", _is_another_node),
    "NodeAgent/ReportOutput": Steered("what the jobs have printed would be changed", _is_another_node),
}
