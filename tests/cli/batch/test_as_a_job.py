"""`gpuctl batch --job`: what it submits, and what it refuses before anything is submitted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from cli.batch.given import own_job, settings_given
from cli.options import Connection
from gpufleet.security.tokens import make_token
from tests.cli import cluster
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler

GATEWAY = "http://127.0.0.1:7860"


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_TOKEN", make_token())
    Path("rows.jsonl").write_text("1\n2\n")


def words(*more: str, source: str = "rows.jsonl", to: str = "out.jsonl") -> Sequence[str]:
    return ("batch", source, "-o", to, "--model", "faces", "--job", *more)


def submitted(fake: FakeScheduler) -> job_pb2.JobSpec:
    (request,) = fake.asked("Submit")
    spec: job_pb2.JobSpec = request.specs[0]
    return spec


def test_the_same_batch_is_submitted_with_whole_paths_and_without_a_token(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUFLEET_INFERENCE_TIMEOUT_S", "5")
    monkeypatch.setenv("GPUFLEET_INFERENCE_TOKEN", make_token())
    done = gpuctl(*words("--cpus", "2", "--as-they-come", "--batch-size", "7", "--label", "of=test"))
    assert (done.code, done.text) == (0, "1\n"), done.err
    spec, here = submitted(fake), tmp_path / "project"
    assert spec.argv == [
        # In a checkout that is a package of its own; where it is installed, it is gpufleet.cli.
        *(sys.executable, "-P", "-m", "cli", "batch", f"{here}/rows.jsonl", "-o", f"{here}/out.jsonl"),
        *("--model", "faces", "--batch-size", "7", "--gateway", GATEWAY, "--as-they-come"),
    ]
    assert (spec.name, spec.cpus, spec.retries, spec.cwd, spec.no_requeue) == ("batch-faces", 2, 3, str(here), False)
    assert spec.env["GPUFLEET_INFERENCE_TIMEOUT_S"] == "5" and not any("TOKEN" in name for name in spec.env)
    assert spec.labels == {"of": "test"} and not spec.devices


def test_workers_that_are_named_are_asked_and_submits_own_options_hold(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    more = ("--address", "n1.lab:8000", "--retries", "0", "--name", "mine", "--gpus", "1", "--python", "/opt/python")
    assert gpuctl(*words(*more)).code == 0
    spec = submitted(fake)
    argv = list(spec.argv)
    assert argv[0] == "/opt/python" and "--gateway" not in argv
    assert argv[argv.index("--address") + 1] == "n1.lab:8000"
    assert (spec.name, spec.retries, spec.devices[0].count) == ("mine", 0, 1)


def test_what_cannot_work_is_refused_and_nothing_is_submitted(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for more, code, said in (
        (words(source="none.jsonl"), 3, "there is no file or folder none.jsonl"),
        (words(to="no/out.jsonl"), 3, "there is no folder"),
        (words(to="rows.jsonl"), 2, "is itself asked about"),
        (words("--retries", "-1"), 2, "retries"),
        (words("--gateway", "ftp://x"), 2, "neither http nor https"),
        (words("--gateway", "http://192.0.2.1:7860"), 4, "without encryption"),
        (("batch", "rows.jsonl", "-o", "out.jsonl", "--model", "faces", "--cpus", "2"), 2, "Add --job"),
    ):
        done = gpuctl(*more)
        assert done.code == code and said in done.err, (more, done.err)
    fake.nodes = cluster.nodes()  # on other machines
    done = gpuctl(*words())
    assert done.code == 2 and f"the job would ask {GATEWAY}, which is another machine on node n1" in done.err
    assert "--gateway https://HOST:7860" in done.err
    fake.nodes[0].address = "127.0.0.1"
    assert not fake.asked("Submit")
    assert gpuctl(*words("--nodelist", "n1")).code == 0


def test_within_a_job_its_own_token_is_sent_whatever_context_the_account_has(
    gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUCTL_TOKEN")
    monkeypatch.delenv("GPUCTL_SCHEDULER")
    assert gpuctl("config", "context", "add", "lab", "--scheduler", "gpu1").code == 0
    own = make_token()
    for name, value in (("JOB_ID", "7"), ("JOB_TOKEN", own), ("SCHEDULER", "127.0.0.1:50051")):
        monkeypatch.setenv(f"GPUFLEET_{name}", value)
    given = settings_given(Connection().settings(jobs=own_job()), "faces", [], None, None)
    assert (given["token"], given["gateway"]) == (own, GATEWAY)
    monkeypatch.delenv("GPUFLEET_JOB_ID")
    assert own_job() == ()
