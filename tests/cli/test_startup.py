"""What a command costs before it does anything: help and completion import nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cli.admin import audit, config, doctor, group, programs, secret, token, up, upgrade, usage, version
from cli.app import command_line
from cli.asking import command as asking_command
from cli.batch import command as batch
from cli.bench_model import command as bench_model
from cli.devices import monitor, top
from cli.inside import exec as exec_command
from cli.inside import forward, ssh
from cli.jobs import change, history, job, queue, wait
from cli.logins import login
from cli.logs import command as logs
from cli.menu import MODULES, PANELS
from cli.nodes import nodes, workers
from cli.results import command as results
from cli.results import keeping
from cli.services import command as services
from cli.sessions import models, providers, serve
from cli.submitting import attach, ingest, notebook, submit
from tests.cli.cluster import nodes as some_nodes
from tests.cli.cluster import running
from tests.cli.conftest import Gpuctl, run_here
from tests.cli.fake_scheduler import FakeScheduler, ended
from tests.cli.golden import assert_golden

HEAVY = ("grpc", "google.protobuf", "pydantic", "rich", "asyncio", "sqlalchemy")
LIST_MODULES = (
    "import sys, json\n    print(json.dumps(sorted(name for name, it in sys.modules.items() if it)), file=sys.stderr)"
)


def modules_of(*arguments: str, **environment: str) -> set[str]:
    """The modules that a command line has imported when it ends."""
    code = f"from gpufleet.cli.__main__ import run\ntry:\n    run({list(arguments)!r})\nfinally:\n    {LIST_MODULES}"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("submit", "--help"), ("logs", "--help"), ("version", "--client"), ("config", "show"), ("sumbit",)],
)
def test_what_calls_nobody_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert not modules_of(*arguments).intersection(HEAVY)


def test_keeping_grpc_silent_costs_help_no_modules_of_its_own() -> None:
    assert not modules_of("--help").intersection({"importlib.abc", "importlib.resources", "tempfile", "random"})


def asking(shell: str, words: str) -> dict[str, str]:
    """What a shell sets that wants to know how these words go on."""
    of_bash = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    of_others = {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return {"_GPUCTL_COMPLETE": f"complete_{shell}", **(of_bash if shell == "bash" else of_others)}


SHELLS = ("bash", "zsh", "fish")
COMMANDS = {f"gpufleet.cli.{module}" for module in MODULES.values()}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("words", ["gpuctl ", "gpuctl su", "gpuctl --s", "gpuctl submit --g", "gpuctl nodes "])
def test_completion_of_words_imports_nothing_heavy(words: str, shell: str) -> None:
    assert not modules_of(**asking(shell, words)).intersection(HEAVY)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("words", ["gpuctl ", "gpuctl su", "gpuctl --s"])
def test_completion_of_a_commands_name_loads_no_command(words: str, shell: str) -> None:
    assert not modules_of(**asking(shell, words)) & COMMANDS


IN_PYTHON = "google.protobuf.internal.python_message"
"""Messages in pure Python, and TLS of asyncio: grpc and protobuf import them, and nothing of a command uses them."""
NEVER = {"typer", "pydantic", "rich", "sqlalchemy", "platform", "decimal", "hashlib", IN_PYTHON, "ssl"}
SCREENS = {"gpufleet.cli.render.table", "gpufleet.cli.printing"}


@pytest.mark.parametrize(
    ("line", "besides"),
    [
        ("queue", {"asyncio", "grpc.aio", "gpufleet.fleet.following", "gpufleet.fleet.submitting.job_options"}),
        ("submit -- true", {"asyncio", "grpc.aio", "gpufleet.fleet.following", *SCREENS}),
        ("run -- true", {"asyncio", "grpc.aio", "gpufleet.fleet.inside", "gpufleet.cli.attaching", *SCREENS}),
    ],
)
def test_what_is_done_many_times_a_day_imports_no_more_than_it_must(
    line: str, besides: set[str], fake: FakeScheduler
) -> None:
    fake.output[1] = [lambda: fake.jobs.update({1: ended()})]
    found = modules_of(*line.split()[:1], "--scheduler", fake.address, *line.split()[1:])
    assert "grpc" in found
    assert not found.intersection(NEVER | besides)


def lines_for(shell: str, words: str) -> list[str]:
    """What the shell is answered, line by line."""
    command = [sys.executable, "-P", "-m", "gpufleet.cli"]
    environment = {**os.environ, **asking(shell, words)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def complete(words: str) -> list[str]:
    return [line for line in lines_for("bash", words) if line]


def test_commands_and_options_are_completed() -> None:
    assert complete("gpuctl su") == ["submit"]
    assert complete("gpuctl ") == list(MODULES)
    assert "--gpus" in complete("gpuctl submit --g")
    assert complete("gpuctl nodes f") == ["forget"]


def test_a_shell_that_shows_help_beside_its_offers_is_given_that_of_the_menu() -> None:
    assert lines_for("fish", "gpuctl su") == ["submit\tSubmit a job and print its id."]
    assert lines_for("zsh", "gpuctl su") == ["""_arguments '*: :(("submit":"Submit a job and print its id."))'"""]


def test_an_offer_is_one_line_however_long_its_help_is() -> None:
    lines = lines_for("fish", "gpuctl submit --g")
    assert [line.partition("\t")[0] for line in lines] == complete("gpuctl submit --g")
    assert max(map(len, lines)) > 80


def test_live_ids_and_nodes_are_completed_and_silence_is_kept_when_nobody_answers(
    fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.jobs[12] = running()
    fake.nodes = some_nodes()
    monkeypatch.setenv("GPUCTL_SCHEDULER", fake.address)
    assert complete("gpuctl logs ") == ["12", "last"]
    assert complete("gpuctl cancel 1") == ["12"]
    assert complete("gpuctl drain n") == ["n1", "n2", "n3"]
    monkeypatch.setenv("GPUCTL_SCHEDULER", "127.0.0.1:1")
    assert complete("gpuctl drain n") == []
    assert complete("gpuctl logs l") == ["last"]


def test_every_command_of_the_menu_is_there_and_no_module_lies_beside_it() -> None:
    commands = (
        asking_command,
        attach,
        audit,
        batch,
        bench_model,
        change,
        config,
        doctor,
        exec_command,
        forward,
        history,
        group,
        job,
        keeping,
        login,
        logs,
        models,
        monitor,
        nodes,
        notebook,
        programs,
        providers,
        queue,
        results,
        secret,
        serve,
        services,
        ssh,
        submit,
        token,
        top,
        up,
        upgrade,
        usage,
        version,
        wait,
        workers,
        ingest,
    )
    assert {module.__name__.removeprefix("cli.") for module in commands} == set(MODULES.values())
    assert sum(map(len, PANELS.values())) == len(MODULES) == 63


def test_the_help_of_gpuctl() -> None:
    assert_golden("help", run_here("--help").text)


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("scheduler", "agent", "gateway", "worker")])
def test_the_help_of_each_command(name: str) -> None:
    shown = run_here(name, "--help")
    assert shown.code == 0
    assert max(map(len, shown.text.splitlines())) <= 80
    assert_golden(f"help_{name}", shown.text)


@pytest.mark.parametrize(
    "words", ["nodes forget", "models drain", "sessions close", "token create", "config init", "config context add"]
)
def test_the_help_of_commands_below(words: str) -> None:
    assert_golden("help_" + words.replace(" ", "_"), run_here(*words.split(), "--help").text)


@pytest.mark.parametrize("panel", PANELS)
def test_the_menu_says_what_the_first_line_of_each_commands_help_says(panel: str) -> None:
    line = command_line()
    for name, entry in PANELS[panel].items():
        assert (line.get_command(None, name).help or "").partition("\n")[0] == entry.summary


def test_the_help_of_gpuctl_loads_no_command() -> None:
    assert not modules_of("--help") & COMMANDS


def test_every_summary_is_one_line_of_the_menu() -> None:
    shown = run_here("--help").text
    rows = [line for line in shown.splitlines() if line.startswith("  ") and line.split()[0] in MODULES]
    assert [row.split()[0] for row in rows] == list(MODULES)


@pytest.mark.parametrize("name", ["scheduler", "agent", "gateway", "worker"])
def test_programs_are_given_all_their_words_and_the_process_itself(name: str) -> None:
    command = [sys.executable, "-P", "-m", "gpufleet.cli", name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"usage: gpuctl {name}" in done.stdout and "--log-level" in done.stdout


def test_a_command_without_its_words_says_what_it_wants(gpuctl: Gpuctl) -> None:
    done = gpuctl("cancel")
    assert done.code == 2 and "JOB" in done.err and "gpuctl cancel --help" in done.err


@pytest.mark.parametrize("arguments", [(), ("token",), ("config", "context")])
def test_nothing_asked_for_is_answered_with_help(arguments: tuple[str, ...]) -> None:
    assert run_here(*arguments) == run_here(*arguments, "--help")
