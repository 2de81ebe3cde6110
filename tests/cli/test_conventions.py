"""What holds of all commands at once: their options, their formats, and how long they wait for an answer."""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.app import command_line
from cli.menu import MODULES, OF_OTHERS
from tests.cli import cluster
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, Fault, Until, ended, job

BECOMES_A_PROGRAM = {"scheduler", "agent", "worker", "gateway"}
ON_THIS_MACHINE = {
    "install",
    "uninstall",
    "up",
    "down",
    "config init",
    "config check",
    "config certificate",
    "providers",
}
OWN_FILES_ONLY = {"config context use", "config user set", "config user list", "config user remove"}
TIME_OUTS = {"--connection-timeout", "--max-wait-time", "--max-consecutive-timeouts", "--session-timeout"}


@cache
def options_of_every_command() -> dict[str, set[str]]:
    """The options of each command that can be typed, by its words."""
    found: dict[str, set[str]] = {}

    def look(words: str, command: Any) -> None:
        for name, below in getattr(command, "commands", {}).items():
            look(f"{words} {name}".strip(), below)
        if not getattr(command, "no_args_is_help", False):
            found[words] = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}

    menu = command_line()
    for name in MODULES:
        look(name, menu.get_command(None, name))
    return found


def test_every_command_that_calls_a_scheduler_takes_its_address_and_a_time_out() -> None:
    lacking = {name for name, options in options_of_every_command().items() if "--scheduler" not in options}
    assert lacking == BECOMES_A_PROGRAM | ON_THIS_MACHINE | OWN_FILES_ONLY
    for name, options in options_of_every_command().items():
        assert ("--connection-timeout" in options) == ("--scheduler" in options) or name == "config context add"


def test_what_follows_takes_the_four_time_outs() -> None:
    followers = {name for name, options in options_of_every_command().items() if options >= TIME_OUTS}
    assert followers == {"submit", "run", "shell", "attach", "logs", "wait", "notebook"}


def test_what_other_programs_call_a_command_leads_to_it(gpuctl: Gpuctl) -> None:
    assert not OF_OTHERS.keys() & MODULES.keys()
    known = options_of_every_command()
    for meant in OF_OTHERS.values():
        words = " ".join(word for word in meant.split() if not word.startswith("-"))
        assert {word for word in meant.split() if word.startswith("-")} <= known[words], meant
    refused = gpuctl("nvidia-smi")
    assert refused.code == 2
    assert refused.err.startswith('gpuctl: there is no command "nvidia-smi"; what it may mean is: gpuctl top\n')


READING = [
    ["queue", "-a"],
    ["job", "12"],
    ["story", "12"],
    ["explain", "13"],
    ["wait", "9"],
    ["nodes"],
    ["workers"],
    ["token", "list"],
    ["audit"],
    ["nodes", "--free"],
    ["stats", "12"],
    ["top"],
    ["estimate", "--tp", "4"],
    ["config", "show"],
    ["config", "context", "list"],
    ["doctor"],
    ["version"],
]


@pytest.fixture
def everything(fake: FakeScheduler) -> FakeScheduler:
    """A scheduler that has something to show for each of them."""
    fake.jobs = {each.id: each for each in (cluster.running(), cluster.queued(), cluster.failed())}
    fake.nodes = cluster.nodes()
    fake.working[0].nodes.add(node="n1")
    fake.server = scheduler_pb2.GetServerInfoResponse(version="0.1.0", user="ada", store_is_healthy=True)
    fake.stories[12] = [job_pb2.StoryLine(sequence=1, kind="JobQueued", sentence="ada submitted it")]
    fake.explanations[13] = job_pb2.Explanation(reason=cluster.queued().wait_reason)
    fake.audit = [scheduler_pb2.AuditEntry(sequence=1, user="ada", action="Submit", code="OK", count=1)]
    fake.tokens = [scheduler_pb2.Token(id="ab12", user="ada", role=scheduler_pb2.ROLE_ADMIN)]
    return fake


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_every_reading_command_answers_in_every_format(
    everything: FakeScheduler, gpuctl: Gpuctl, arguments: list[str]
) -> None:
    gpuctl("config", "context", "add", "lab", "--scheduler", "gpu1")
    for form in ("table", "wide", "json", "jsonl", "name"):
        done = gpuctl(*arguments, "-o", form)
        assert "Traceback" not in done.err and "internal error" not in done.err
        if form == "json":
            json.loads(done.text)
        if form == "jsonl":
            assert [json.loads(line) for line in done.text.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "method", "code"),
    [
        (["queue"], "Queue", 5),
        (["job", "12"], "GetJob", 5),
        (["nodes"], "ListNodes", 5),
        (["explain", "13"], "Explain", 5),
        (["version"], "GetServerInfo", 5),
        (["hold", "13"], "UpdateJob", 5),
        (["drain", "n1"], "UpdateNode", 5),
        (["wait", "12"], "GetJob", 125),
        (["run", "--", "train"], "Submit", 125),
    ],
)
def test_no_call_is_waited_for_longer_than_the_connection_time_out(
    everything: FakeScheduler, gpuctl: Gpuctl, arguments: list[str], method: str, code: int
) -> None:
    everything.faults[method] += [Fault.HANG] * 20
    command, *rest = arguments
    done = gpuctl(command, "--connection-timeout", "200ms", *rest)
    assert done.code == code
    assert f"no answer came from {everything.address} within 0.2 s" in done.err
    assert "--connection-timeout" in done.err or "--request-id" in done.err


def test_submit_interactive_stays_and_gives_the_jobs_code(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    def finish() -> None:
        fake.jobs[1] = ended(1, code=7)

    fake.output[1] = [finish]
    assert gpuctl("submit", "-i", "--", "train").code == 7


def test_logs_of_several_that_are_followed_give_up_together_and_name_them_all(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.jobs = {1: job(1), 2: ended(2)}
    fake.output[1] = [Until(threading.Event(), sends_keepalives=True)]
    done = gpuctl("logs", "-f", "1", "2", "--session-timeout", "1s")
    assert done.code == 125
    assert "the session reached its 1 s. Come back with: gpuctl logs -f 1 2" in done.err
    assert not fake.asked("Cancel")
