"""`up` and `down` with the real programs: a whole gpufleet that starts, works, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.local.folders import Record, read_record
from tests.cli.terminal import Terminal

# Each starts and stops several programs, one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WAIT_S_MAX = 60.0


def gpuctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run gpuctl as a process of its own, to its end."""
    command = [sys.executable, "-P", "-m", "gpufleet.cli", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder; what `up` left running in it is stopped."""
    folder = tmp_path / "fleet"
    yield folder
    gpuctl("down", "--data", str(folder), "--yes")


@pytest.fixture
def terminals() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, is_patient: bool = False) -> Terminal:
        opened.append(Terminal(*arguments, is_patient=is_patient))
        return opened[-1]

    yield open_terminal
    for terminal in opened:
        terminal.close()


def start_job_that_waits_for(file: Path) -> str:
    """A running job that ends when the file is there, and says when it was told to end; answers its id."""
    waits = file.with_suffix(".waits")
    script = f"trap 'echo told; exit 4' TERM; touch {waits}; while [ ! -e {file} ]; do sleep 0.05; done; echo done"
    job_id = gpuctl("submit", "--gpus", "1", "--", script).stdout.strip()
    wait_until(waits.exists, "the job does not start")
    wait_until(lambda: "RUNNING" in gpuctl("job", job_id, "-o", "json").stdout, "nobody hears that it runs")
    return job_id


def test_one_command_makes_a_fleet_that_works_without_flags_and_another_takes_it_away(data: Path) -> None:
    ports = ("--scheduler-port", "0", "--gateway-port", "0")
    up = gpuctl("up", "--data", str(data), *ports, "--virtual-gpus", "2", "--detach")
    assert (up.returncode, up.stderr) == (0, "")
    page = re.search(r"^page +http://localhost:(\d+)$", up.stdout, re.MULTILINE)
    assert page is not None, up.stdout
    with urlopen(f"http://127.0.0.1:{page[1]}/healthz", timeout=WAIT_S_MAX) as answer:
        assert json.load(answer)["scheduler"] == "connected"
    models = re.search(r"^gRPC +localhost:(\d+) \(Open Inference Protocol\)$", up.stdout, re.MULTILINE)
    assert models is not None, up.stdout
    socket.create_connection(("127.0.0.1", int(models[1])), timeout=WAIT_S_MAX).close()
    assert "listening on" in (data / "gateway" / "logs" / "gateway.log").read_text()
    assert f"http://localhost:{page[1]}" in gpuctl("config", "show").stdout, "infer and batch ask there"
    assert "2 × gpufleet virtual GPU" in up.stdout and 'context    "local" is in use now' in up.stdout
    done = gpuctl("run", "--gpus", "2", "--", "echo $CUDA_VISIBLE_DEVICES$HOME; echo oops >&2; exit 7")
    assert (done.returncode, done.stderr.splitlines()[0]) == (7, "oops")
    assert "failed" in gpuctl("queue", "-a").stdout
    again = gpuctl("up", "--data", str(data), "--detach")
    assert again.returncode == 4 and "still runs" in again.stderr and "gpuctl down" in again.stderr
    record = read_record(data)
    assert record is not None and [program.name for program in record.running()] == ["scheduler", "agent", "gateway"]
    down = gpuctl("down", "--data", str(data))
    assert down.returncode == 0 and not record.running() and read_record(data) is None
    assert gpuctl("down", "--data", str(data)).returncode == 0


def test_the_page_is_shown_to_other_machines_only_in_so_many_words(data: Path) -> None:
    up = ("up", "--data", str(data), "--scheduler-port", "0", "--port", "0", "--no-agent", "--detach")
    refused = gpuctl(*up, "--gateway-host", "0.0.0.0")
    assert refused.returncode == 2, refused
    assert "0.0.0.0 is beyond this machine" in refused.stderr and "--insecure" in refused.stderr
    assert read_record(data) is None and not data.exists()
    started = gpuctl(*up, "--gateway-host", "0.0.0.0", "--insecure")
    assert (started.returncode, started.stderr) == (0, "")
    pages = re.findall(r"http://(\S+:\d+)$", started.stdout, re.MULTILINE)
    assert pages[0].startswith("localhost:")
    for page in pages:
        with urlopen(f"http://{page}/healthz", timeout=WAIT_S_MAX) as answer:
            assert json.load(answer)["scheduler"] == "connected"


def test_a_gateway_with_a_certificate_shows_its_page_by_https(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gpuctl("config", "certificate", "--dir", str(tmp_path))
    assert made.returncode == 0, made
    monkeypatch.setenv("GPUCTL_GATEWAY_TLS_CERT_FILE", str(tmp_path / "server.pem"))
    monkeypatch.setenv("GPUCTL_GATEWAY_TLS_KEY_FILE", str(tmp_path / "server.key"))
    ports = ("--scheduler-port", "0", "--gateway-port", "0")
    up = gpuctl("up", "--data", str(data), *ports, "--no-agent", "--detach", "--gateway-host", "0.0.0.0")
    assert (up.returncode, up.stderr) == (0, "")
    page = re.search(r"^page +(https://localhost:\d+)$", up.stdout, re.MULTILINE)
    assert page is not None, up.stdout
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with urlopen(f"{page[1]}/healthz", timeout=WAIT_S_MAX, context=context) as answer:
        assert json.load(answer)["scheduler"] == "connected"
    models = re.search(r"^gRPC +(localhost:\d+) ", up.stdout, re.MULTILINE)
    assert models is not None, up.stdout
    with grpc.secure_channel(models[1], grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())) as channel:
        said = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S_MAX)
        assert said.status == health_pb2.HealthCheckResponse.SERVING


def kill(record: Record, names: Collection[str]) -> None:
    """End these programs of an `up` at once."""
    programs = [each for each in record.programs if each.name in names]
    for program in programs:
        os.kill(program.pid, signal.SIGKILL)
    wait_until(lambda: not any(each.is_running() for each in programs), f"{names} go on")


def test_up_starts_again_what_died_as_it_was_and_keeps_the_rest(data: Path, tmp_path: Path) -> None:
    up = ("up", "--data", str(data), "--detach")
    options = ("--scheduler-port", "0", "--gateway-port", "0", "--virtual-gpus", "2")
    first = gpuctl(*up, *options)
    assert first.returncode == 0, first
    job_id = start_job_that_waits_for(tmp_path / "go")
    before = read_record(data)
    assert before is not None
    for died in (["gateway"], ["scheduler"], ["agent", "gateway"]):
        was = read_record(data)
        assert was is not None
        kill(was, died)
        told = gpuctl("doctor").stdout
        assert f"gpuctl up --data {data}" in told or died == ["agent", "gateway"], told
        refused = gpuctl(*up, "--virtual-gpus", "1")
        assert refused.returncode != 0 and "was started with other options" in refused.stderr
        again = gpuctl(*up, *(options if died == ["gateway"] else ()))
        assert again.returncode == 0, again
        kept = [f"the {each.name}" for each in was.programs if each.name not in died]
        assert f"started again: {', '.join(f'the {name}' for name in died)}; kept: {', '.join(kept)}" in again.stderr
        now = read_record(data)
        assert now is not None and len(now.running()) == 3
        assert [each for each in now.programs if each.name not in died] == [
            each for each in was.programs if each.name not in died
        ]
        assert (now.address, now.node) == (before.address, before.node)
        assert again.stdout.splitlines()[:4] == first.stdout.splitlines()[:4], "the same addresses and GPUs"
    (tmp_path / "go").touch()
    assert gpuctl("wait", job_id).returncode == 0
    assert gpuctl("logs", job_id).stdout == "done\n"
    assert "answers, and hears the scheduler" in gpuctl("doctor").stdout
    assert "still runs" in gpuctl(*up).stderr
    assert gpuctl("down", "--data", str(data)).returncode == 0
    assert not before.running() and read_record(data) is None


def test_down_asks_before_it_ends_jobs_and_what_waits_stays_queued(data: Path, tmp_path: Path) -> None:
    gpuctl("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--virtual-gpus", "1", "--detach")
    job_id = start_job_that_waits_for(tmp_path / "never")
    waiting = gpuctl("submit", "--gpus", "1", "--", "true").stdout.strip()
    asked = gpuctl("down", "--data", str(data))
    assert asked.returncode == 2 and f"1 job would be ended ({job_id})" in asked.stderr
    assert gpuctl("down", "--data", str(data), "--yes").returncode == 0
    gpuctl("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--detach", "--virtual-gpus", "1")
    assert gpuctl("wait", waiting).returncode == 0
    story = gpuctl("story", waiting).stdout
    assert story.count("AttemptPlaced") == 1, story
    assert "CANCELLED" in gpuctl("job", job_id, "-o", "json").stdout
    assert "told" in gpuctl("logs", job_id).stdout


def test_down_does_not_wait_for_an_agent_that_has_ended_and_the_next_up_hears_of_its_jobs(
    data: Path, tmp_path: Path
) -> None:
    begin = ("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--virtual-gpus", "1", "--detach")
    gpuctl(*begin)
    job_id = start_job_that_waits_for(tmp_path / "never")
    record = read_record(data)
    assert record is not None
    (agent,) = (each for each in record.programs if each.name == "agent")
    os.kill(agent.pid, signal.SIGKILL)
    wait_until(lambda: not agent.is_running(), "the agent goes on")
    done = gpuctl("down", "--data", str(data), "--yes")
    assert done.returncode == 0 and "the agent had ended before" in done.stderr, done.stderr
    assert gpuctl(*begin).returncode == 0
    assert gpuctl("wait", job_id).returncode != 0
    assert "SHUTDOWN" in gpuctl("job", job_id, "-o", "json").stdout
    assert gpuctl("logs", job_id).stdout == "told\n"


def test_jobs_that_are_kept_are_taken_back_by_the_next_up_and_nothing_they_wrote_is_lost(
    data: Path, tmp_path: Path
) -> None:
    gpuctl("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--virtual-gpus", "1", "--detach")
    job_id = start_job_that_waits_for(tmp_path / "go")
    assert gpuctl("down", "--data", str(data), "--keep-jobs").returncode == 0
    (tmp_path / "go").touch()
    gpuctl("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--virtual-gpus", "1", "--detach")
    assert gpuctl("wait", job_id).returncode == 0
    assert gpuctl("logs", job_id).stdout == "done\n"


def test_ctrl_c_stops_everything_and_running_jobs_only_at_the_second(
    data: Path, tmp_path: Path, terminals: Callable[..., Terminal]
) -> None:
    up = ("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--virtual-gpus", "1")
    terminal = terminals(*up)
    terminal.wait_for("Stop: Ctrl-C")
    terminal.wait_for("0 running, 0 waiting · 1 node ready, 1 GPU free")
    job_id = start_job_that_waits_for(tmp_path / "never")
    terminal.wait_for("1 running, 0 waiting · 1 node ready, 0 GPUs free")
    terminal.type("\x03")
    after = terminal.wait_for("1 job runs and goes on for the next gpuctl up; Ctrl-C again within 3 s ends them")
    terminal.wait_for("stopping the scheduler", after)
    assert terminal.end() == 0
    terminal = terminals(*up, is_patient=True)
    terminal.wait_for("1 running, 0 waiting")
    terminal.type("\x03")
    terminal.wait_for("Ctrl-C again")
    terminal.type("\x03")
    terminal.wait_for("ending 1 running job")
    assert terminal.end() == 0
    assert job_id


def test_a_down_from_elsewhere_ends_the_up_that_stays(data: Path, terminals: Callable[..., Terminal]) -> None:
    terminal = terminals("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--virtual-gpus", "1")
    terminal.wait_for("1 node ready")
    assert gpuctl("down", "--data", str(data)).returncode == 0
    terminal.wait_for("stopped by gpuctl down")
    assert terminal.end() == 0


def test_a_program_that_is_killed_ends_the_up_that_stays_with_a_reason(
    data: Path, terminals: Callable[..., Terminal]
) -> None:
    terminal = terminals("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--virtual-gpus", "1")
    terminal.wait_for("1 node ready")
    record = read_record(data)
    assert record is not None
    os.kill(record.programs[0].pid, signal.SIGKILL)
    terminal.wait_for("the scheduler ended")
    assert terminal.end() == 1
    assert not record.running()


def test_a_taken_port_is_told_with_its_holder_and_nothing_is_left_running(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        up = gpuctl("up", "--data", str(data), "--scheduler-port", port, "--no-gateway", "--detach")
    assert up.returncode == 4
    assert port in up.stderr and str(os.getpid()) in up.stderr and "--scheduler-port" in up.stderr
    assert read_record(data) is None and not (data / "scheduler").exists()


def test_a_taken_port_of_the_page_is_told_with_the_flag_before_anything_starts(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        up = gpuctl("up", "--data", str(data), "--scheduler-port", "0", "--port", port, "--detach")
    assert up.returncode == 4
    assert port in up.stderr and str(os.getpid()) in up.stderr and " --port." in up.stderr
    assert not (data / "scheduler").exists()


def test_a_pid_that_was_given_away_is_not_signalled(data: Path) -> None:
    gpuctl("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--virtual-gpus", "1", "--detach")
    record = read_record(data)
    assert record is not None
    from dataclasses import replace

    other = replace(record.programs[0], pid=os.getpid())
    assert not other.is_running() and other.stop(0.1)


def test_down_finds_what_the_context_in_use_was_started_with(data: Path) -> None:
    up = gpuctl("up", "--data", str(data), "--scheduler-port", "0", "--no-agent", "--no-gateway", "--detach")
    assert (up.returncode, up.stderr) == (0, "")
    record = read_record(data)
    assert record is not None and record.running()
    down = gpuctl("down", "--yes")
    assert down.returncode == 0, down.stderr
    assert f"the context in use is of what was started with --data {data}" in down.stderr
    assert not record.running() and read_record(data) is None
    assert "nothing runs that gpuctl up started" in gpuctl("down").stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("is_detached", [True, False], ids=["detached", "attached"])
def test_an_up_that_is_told_to_stop_while_it_starts_leaves_nothing_behind(
    data: Path, number: signal.Signals, is_detached: bool
) -> None:
    command = [sys.executable, "-P", "-m", "gpufleet.cli", "up", "--data", str(data), "--scheduler-port", "0"]
    command += ["--no-gateway", *(["--detach"] if is_detached else [])]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as up:
        try:
            wait_until(lambda: read_record(data) is not None, "no scheduler is started")
            record = read_record(data)
            assert record is not None and record.running()
            up.send_signal(number)
            _, said = up.communicate(timeout=WAIT_S_MAX)
        finally:
            up.kill()
    assert up.returncode == 128 + number, said
    assert b"stopped before everything ran; nothing is left running" in said
    assert not record.running() and read_record(data) is None


def test_nobody_elses_jobs_run_on_ones_own_machine_unless_it_is_shared_or_was_before(
    data: Path, tmp_path: Path
) -> None:
    start = ("up", "--data", str(data), "--scheduler-port", "0", "--no-gateway", "--detach")
    steal = ("run", "--cwd", "/", "--", "cat", str(data / "scheduler" / "admin.token"))
    assert gpuctl(*start).returncode == 0
    secret = tmp_path / "bob.token"
    secret.touch(0o600)
    secret.write_text(gpuctl("token", "create", "bob").stdout)

    def as_bob(*arguments: str) -> subprocess.CompletedProcess[str]:
        return gpuctl(arguments[0], "--token-file", str(secret), *arguments[1:])

    assert gpuctl("run", "--cwd", "/", "--", "id", "-u").stdout == f"{os.geteuid()}\n"
    refused = as_bob(*steal)
    assert refused.returncode != 0 and not refused.stdout
    assert " alone" in refused.stderr and "--shared-account" in refused.stderr

    gpuctl("down", "--data", str(data))
    assert gpuctl(*start, "--shared-account").returncode == 0
    assert as_bob(*steal).stdout == (data / "scheduler" / "admin.token").read_text(), "which is what sharing means"

    # An agent from before there was a choice goes on as it did, and the doctor warns of it.
    gpuctl("down", "--data", str(data))
    identity = json.loads((data / "agent" / "agent.json").read_text())
    del identity["is_from_before"]
    (data / "agent" / "agent.json").write_text(json.dumps(identity))
    assert gpuctl(*start).returncode == 0
    assert as_bob("run", "--cwd", "/", "--", "echo", "hello").stdout == "hello\n"
    told = gpuctl("doctor").stdout
    assert "jobs of all users run as" in told and "--shared-account" in told
