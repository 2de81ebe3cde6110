"""A replica of a served program in a container: what its command says, and what its worker is run with."""

from __future__ import annotations

import sys

import pytest

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.containers.engine import ContainerTrouble
from node_agent.containers.running import runner_of
from node_agent.containers.served import served_of
from node_agent.core.launch import Container, Launch, Process, RefusalReason

FLAGS = ("--name", "chat", "--port-env", "LISTEN", "--concurrency", "64", "--ready", "/health")
BEGIN = ("gpuctl", "worker", "--http-service")
CONTAINER = Container(engine="/s", id="c1", state="/state.json")


def process(*argv: str, **env: str) -> Process:
    return Process(argv=argv, env=env, cwd="/")


@pytest.mark.parametrize(
    ("flags", "words", "inside", "listens"),
    [
        (FLAGS, (), (), "10500"),
        (FLAGS, ("serve", "--port=$LISTEN", "--", "$PORT"), ("serve", "--port=10500", "--", "$PORT"), "10500"),
        ((*FLAGS, "--container-port", "8000"), ("--port", "${LISTEN}"), ("--port", "8000"), "8000"),
        (("--name", "chat"), ("$PORT",), ("10500",), None),
    ],
)
def test_the_image_is_run_with_the_words_behind_the_flags_and_told_its_port(
    flags: tuple[str, ...], words: tuple[str, ...], inside: tuple[str, ...], listens: str | None
) -> None:
    served = served_of((*BEGIN, *flags, "--", *words))
    found = served.process_in_container(process("x", A="1"), 10500)
    assert found.argv == inside
    assert found.env == {"A": "1", "PORT" if listens is None else "LISTEN": listens or "10500"}


@pytest.mark.parametrize("argv", [(), ("sh", "-c", "id"), (*BEGIN, *FLAGS), ("x", *BEGIN, "--", "y")])
def test_no_other_command_is_run_as_the_agent(argv: tuple[str, ...]) -> None:
    with pytest.raises(ContainerTrouble) as refused:
        served_of(argv)
    assert refused.value.refusal.reason is RefusalReason.CONTAINER_FAILED


def test_the_worker_finds_nothing_of_the_jobs_environment_but_who_it_is() -> None:
    of_worker = {
        "GPUCTL_TOKEN": "gf_1",
        "GPUFLEET_TICKET_SECRET": "ab",
        "GPUFLEET_JOB_ID": "7",
        "GPUFLEET_ATTEMPT": "1",
    }
    of_user = {"LD_PRELOAD": "/tmp/mine.so", "PYTHONPATH": "/tmp", "GPUFLEET_TLS_KEY": "key.pem", "HOME": "/h"}
    job = process("gpuctl", **of_worker, **of_user)
    served = served_of((*BEGIN, *FLAGS, "--", "serve"))
    inside = served.process_in_container(job, 10500)
    assert inside.env.keys() & of_worker.keys() == {"GPUFLEET_JOB_ID", "GPUFLEET_ATTEMPT"}
    carrier = runner_of(Launch(key=RankKey(JobId(7), 1, 0), process=inside, heartbeat_sent_us=0), CONTAINER, "mark")
    worker = served.worker(carrier, 10500, job.env, {"GPUCTL_SCHEDULER": "h:1"})
    assert worker.env == {"PATH": worker.env["PATH"], "LANG": "C.UTF-8", **of_worker, "GPUCTL_SCHEDULER": "h:1"}
    told = ("--program-port", "10500", "--program-state", "/state.json")
    begin = (sys.executable, "-P", "-m", "gpufleet.inference", "--http-service")
    assert worker.argv == (*begin, *FLAGS, *told, "--", *carrier.argv)
    assert worker.isolation is None and worker.container is not None and worker.container.has_worker
