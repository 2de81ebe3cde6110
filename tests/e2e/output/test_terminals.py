"""gpuctl on real terminals: shells, keys, sizes, detaching and coming back, and what all of it survives."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Terminal
from tests.e2e.fleet import Fleet

RUN_S_MAX = 60.0
COOKED = termios.ICANON | termios.ECHO | termios.ISIG
SH = ("run", "-i", "--grace", "1s", "--", "sh")

Open = Callable[..., Terminal]


def environment(fleet: Fleet) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUCTL_")}
    own = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": fleet.scheduler.token("admin")}
    return {**kept, **own, "XDG_CONFIG_HOME": str(fleet.folder), "PS1": "$ ", "TERM": "xterm", "ENV": ""}


@pytest.fixture
def terminals() -> Iterator[Callable[..., Terminal]]:
    """Opens a terminal with gpuctl on it, for a fleet."""
    opened: list[Terminal] = []

    def open_terminal(fleet: Fleet, *arguments: str) -> Terminal:
        opened.append(Terminal(*arguments, environment=environment(fleet)))
        return opened[-1]

    yield open_terminal
    for terminal in opened:
        terminal.close()


@pytest.fixture
def on_terminal(shared_fleet: Fleet, terminals: Open) -> Iterator[Open]:
    """Opens a terminal for the shared fleet, which is left as it was."""
    yield lambda *arguments: terminals(shared_fleet, *arguments)
    gpuctl(shared_fleet, "cancel", "all", "--yes")


def gpuctl(fleet: Fleet, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run gpuctl without a terminal."""
    command = [sys.executable, "-P", "-m", "gpufleet.cli", *arguments]
    options.setdefault("stdin", None if "input" in options else subprocess.DEVNULL)
    return subprocess.run(
        command, env=environment(fleet), capture_output=True, timeout=RUN_S_MAX, check=False, **options
    )


def job_of(terminal: Terminal) -> str:
    """The id of the job that a terminal is attached to, once keys go to it."""
    terminal.wait_for("; ~. at the beginning of a line detaches\r\n")
    terminal.wait_until(lambda: not terminal.modes()[3] & COOKED, "keys that go to the job")
    found = re.search(rb"job (\d+) runs on n1", terminal.shown)
    assert found is not None, terminal.shown
    return found.group(1).decode()


def has_its_modes_back(terminal: Terminal) -> bool:
    return terminal.modes()[3] & COOKED == COOKED and bool(terminal.modes()[1] & termios.OPOST)


def test_a_shell_shows_what_is_typed_and_gives_its_code_and_its_output_is_in_the_logs(
    shared_fleet: Fleet, on_terminal: Open
) -> None:
    terminal = on_terminal(*SH)
    job = job_of(terminal)
    terminal.type("echo $((40+2)); tty\r")
    terminal.wait_for("42\r\n/dev/pts/")
    terminal.type("exit 7\r")
    assert terminal.end() == 7
    assert has_its_modes_back(terminal)
    assert terminal.shown.endswith(b"\r\ngpuctl: job %s failed with exit code 7 (EXITED)\r\n" % job.encode())
    logged = gpuctl(shared_fleet, "logs", job).stdout
    assert b"42\r\n/dev/pts/" in logged


def test_the_size_of_the_window_is_that_of_the_job_and_follows_it(on_terminal: Open) -> None:
    terminal = on_terminal(*SH)
    job_of(terminal)
    terminal.type("stty size\r")
    after = terminal.wait_for("24 80\r\n")
    terminal.resize(33, 101)
    # The window's size and the keys go the same way; only here the one may overtake the other.
    deadline = time.monotonic() + RUN_S_MAX
    while b"33 101\r\n" not in terminal.shown:
        assert time.monotonic() < deadline, terminal.shown
        terminal.type("stty size; echo 'asked'\r")
        after = terminal.wait_for("asked\r\n", after)
    terminal.type("exit\r")
    assert terminal.end() == 0


def test_ctrl_c_ends_the_command_in_the_foreground_and_not_the_session(on_terminal: Open) -> None:
    terminal = on_terminal(*SH)
    job_of(terminal)
    # Who says "now" is in the foreground already: the shell itself would let the signal pass by.
    terminal.type("sh -c 'echo now; exec sleep 1000'\r")
    after = terminal.wait_for("now\r\n")
    terminal.type("\x03")
    after = terminal.wait_for("^C", after)
    terminal.type("echo code $?\r")
    terminal.wait_for("code 130\r\n", after)
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_person_detaches_and_comes_back_to_the_same_shell(shared_fleet: Fleet, on_terminal: Open) -> None:
    terminal = on_terminal(*SH)
    job = job_of(terminal)
    terminal.type("mine=kept; echo o''ne\r")
    terminal.wait_for("one\r\n")
    terminal.type("~.")
    terminal.wait_for(f"gpuctl: detached; job {job} goes on. Come back with: gpuctl attach {job}")
    assert terminal.end() == 0
    assert has_its_modes_back(terminal)
    again = on_terminal("attach", job)
    again.wait_for("one\r\n")
    assert job_of(again) == job
    again.type("echo it is $mine\r")
    again.wait_for("it is kept\r\n")
    again.type("exit 3\r")
    assert again.end() == 3


def test_what_a_program_switched_on_in_the_terminal_is_off_after_detaching(on_terminal: Open) -> None:
    terminal = on_terminal("run", "-i", "--", "sh", "-c", r"printf '\033[?1049h\033[?25ldrawn'; cat")
    job = job_of(terminal)
    terminal.wait_for("drawn")
    terminal.type("~.")
    terminal.wait_for("\x1b[?1049l\x1b[?25h")
    terminal.wait_for("detached")
    assert terminal.end() == 0
    back = on_terminal("attach", job)
    job_of(back)
    back.type("\x04")
    assert back.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_gpuctl_gives_the_terminal_back_and_the_job_goes_on(
    shared_fleet: Fleet, on_terminal: Open, number: signal.Signals
) -> None:
    terminal = on_terminal(*SH)
    job = job_of(terminal)
    terminal.type("echo r''aw\r")  # what is echoed differs from what is printed, whenever the prompt comes
    terminal.wait_for("raw\r\n")
    terminal.process.send_signal(number)
    terminal.wait_for(f"left by {number.name}; job {job} goes on. Come back with: gpuctl attach {job}")
    assert terminal.end() == 128 + number
    assert has_its_modes_back(terminal)
    assert gpuctl(shared_fleet, "cancel", job).returncode == 0


def test_a_window_that_is_closed_leaves_the_shell_for_whoever_comes_back(on_terminal: Open) -> None:
    terminal = on_terminal(*SH)
    job = job_of(terminal)
    terminal.type("mine=kept; echo o''ne\r")
    terminal.wait_for("one\r\n")
    assert terminal.close_window() == 128 + signal.SIGHUP
    again = on_terminal("attach", job)
    job_of(again)
    again.type("echo it is $mine; exit\r")
    again.wait_for("it is kept\r\n")
    assert again.end() == 0


def test_a_second_session_is_refused_and_takes_over_when_it_says_so(on_terminal: Open) -> None:
    first = on_terminal(*SH)
    job = job_of(first)
    first.type("echo fi''rst\r")
    first.wait_for("first\r\n")
    second = on_terminal("attach", job)
    second.wait_for(f"gpuctl attach --take-over {job}")
    assert second.end() == 125
    assert has_its_modes_back(second)
    third = on_terminal("attach", "--take-over", job)
    job_of(third)
    first.wait_for(f"another session took the keyboard of job {job}")
    assert first.end() == 125
    assert has_its_modes_back(first)
    third.type("exit\r")
    assert third.end() == 0


def test_a_shell_on_a_gpu_sees_it_and_ctrl_c_leaves_the_queue(shared_fleet: Fleet, on_terminal: Open) -> None:
    terminal = on_terminal("shell", "--gpus", "2")
    job = job_of(terminal)
    terminal.type("echo gpus $GPUFLEET_GPUS_PER_NODE\r")
    terminal.wait_for("gpus 2\r\n")
    waiting = on_terminal("shell", "--gpus", "1")
    after = waiting.wait_for("is queued")
    waiting.type("\x03")
    after = waiting.wait_for("did not get SIGINT", after)
    waiting.type("\x03")
    assert waiting.end() == 130
    assert gpuctl(shared_fleet, "cancel", job).returncode == 0
    assert terminal.end() == 125
    assert has_its_modes_back(terminal)


def test_a_pipe_is_passed_on_byte_for_byte_and_the_code_comes_back(shared_fleet: Fleet, tmp_path: Path) -> None:
    data = bytes(range(256)) * 2000
    done = gpuctl(shared_fleet, "run", "-i", "--", "sh", "-c", "cat; exit 4", input=data)
    assert (done.returncode, done.stdout) == (4, data), done.stderr
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "data").open("rb") as file:
        done = gpuctl(shared_fleet, "run", "-i", "--", "wc", "-c", stdin=file)
    assert done.stdout.split() == [b"%d" % len(data)]
    assert gpuctl(shared_fleet, "run", "-i", "--", "cat").returncode == 0, "/dev/null has an end"


def test_a_process_that_reads_little_ends_all_the_same(shared_fleet: Fleet) -> None:
    done = gpuctl(shared_fleet, "run", "-i", "--", "head", "-c", "5", input=b"x" * 1_000_000)
    assert (done.returncode, done.stdout) == (0, b"xxxxx")


def test_what_cannot_be_attached_to_says_what_to_type(shared_fleet: Fleet) -> None:
    no_terminal = gpuctl(shared_fleet, "shell")
    assert no_terminal.returncode == 125
    assert b"it needs a terminal" in no_terminal.stderr
    assert b"gpuctl run -i -- sh" in no_terminal.stderr
    plain = gpuctl(shared_fleet, "submit", "--", "sleep", "1000").stdout.decode().strip()
    refused = gpuctl(shared_fleet, "attach", plain)
    assert refused.returncode == 125
    assert f"gpuctl logs -f {plain}".encode() in refused.stderr
    gpuctl(shared_fleet, "cancel", plain)
    assert gpuctl(shared_fleet, "wait", plain).returncode == 125
    ended = gpuctl(shared_fleet, "attach", plain)
    assert f"job {plain} has ended".encode() in ended.stderr


async def test_agent_and_scheduler_start_anew_under_a_session_and_it_goes_on_by_itself(
    fleet: Fleet, terminals: Open
) -> None:
    agent = await fleet.add_node()
    session = Session(fleet, terminals)
    await asyncio.to_thread(session.begin)
    agent.kill()
    agent.spawn()
    await fleet.node_is_ready("n1")
    await asyncio.to_thread(session.goes_on, "after the agent")
    fleet.scheduler.kill()
    await asyncio.to_thread(session.types_into_the_dark, "typed meanwhile")
    await fleet.scheduler.start()
    await asyncio.to_thread(session.shows, "typed meanwhile")
    await asyncio.to_thread(session.goes_on, "after the scheduler")
    await asyncio.to_thread(session.ends)


async def test_a_person_detaches_also_while_the_scheduler_is_away(fleet: Fleet, terminals: Open) -> None:
    await fleet.add_node()
    session = Session(fleet, terminals)
    await asyncio.to_thread(session.begin)
    fleet.scheduler.kill()
    await asyncio.to_thread(session.types_into_the_dark, "never mind")
    await asyncio.to_thread(session.detaches)


class Session:
    """A person at a terminal, for a test that does harm meanwhile."""

    def __init__(self, fleet: Fleet, terminals: Open) -> None:
        self.fleet, self.terminals = fleet, terminals

    def begin(self) -> None:
        self.terminal = self.terminals(self.fleet, *SH)
        job_of(self.terminal)
        self.goes_on("before")

    def goes_on(self, text: str) -> None:
        self.terminal.type(f"echo '{text}'\r")
        self.shows(text)

    def types_into_the_dark(self, text: str) -> None:
        self.terminal.wait_for("the scheduler is away")
        self.terminal.type(f"echo '{text}'\r")

    def detaches(self) -> None:
        self.terminal.type("~.")
        self.terminal.wait_for("Come back with: gpuctl attach")
        assert self.terminal.end() == 0
        assert has_its_modes_back(self.terminal)

    def shows(self, text: str) -> None:
        self.terminal.wait_for(f"\r\n{text}\r\n")

    def ends(self) -> None:
        self.terminal.type("exit 5\r")
        assert self.terminal.end() == 5
        shown = self.terminal.shown
        for text in (b"before", b"after the agent", b"typed meanwhile", b"after the scheduler"):
            assert shown.count(b"\r\n" + text + b"\r\n") == 1, shown
        assert has_its_modes_back(self.terminal)


def test_run_tells_where_it_runs_before_the_first_line_of_the_job(on_terminal: Open) -> None:
    terminal = on_terminal("run", "--", "echo first line")
    assert terminal.end() == 0
    told = re.search(rb"job \d+ (starts|runs) on n1", terminal.shown)
    assert told is not None, terminal.shown
    assert told.start() < terminal.shown.index(b"first line")
    assert len(re.findall(rb"(starts|runs) on n1", terminal.shown)) == 1
