"""`doctor --bundle`: everything that a bug report needs, and nothing that anybody could misuse."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.doctor.redaction import GONE, Redactor, is_secret_name, secrets_of
from gpufleet.security.tokens import make_token, write_token_file
from tests.cli import cluster
from tests.cli.conftest import Gpuctl, run_here
from tests.cli.doctor.test_doctor import free_port, healthy
from tests.cli.fake_scheduler import FakeScheduler

# Each is planted somewhere below, and none may be found in a bundle.
HARMLESS = {
    "token_file = lab.token",
    'key_file = "/etc/tls/server.key"',
    "the token of this call is unknown",
    "GPUFLEET_JOB_ID=7 rank 0 ended: exit code 1",
    '"what": "token", "verdict": "OK"',
    "monkey=patched turnkey: yes",
    "see https://example.com/docs?page=2 and ssh host:22",
    '"tokens": [{"key": {"job_id": 3}}]',
}


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2hunter2",
        'password = "hunter2hunter2"',
        "Password: hunter2hunter2",
        '{"db_password": "hunter2hunter2", "n": 1}',
        '{"message": "with {\\"api_key\\": \\"hunter2hunter2\\"}"}',
        "WANDB_API_KEY=hunter2hunter2 python train.py",
        "export AWS_SECRET_ACCESS_KEY='hunter2hunter2'",
        "python train.py --api-key hunter2hunter2 --epochs 3",
        "python train.py --api-key=hunter2hunter2",
        "curl -H 'Authorization: Bearer hunter2hunter2'",
        "authorization: Basic hunter2hunter2",
        "sent Bearer hunter2hunter2 to the proxy",
        "postgresql://ada:hunter2hunter2@db/fleet",
        "redis://:hunter2hunter2@cache:6379",
        "https://hunter2hunter2@github.com/a/b",
        "Cookie: session=hunter2hunter2",
        "-----BEGIN EC PRIVATE KEY-----\nhunter2hunter2\n-----END EC PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2hunter2 and the file ends",
        "gf_" + "hunter2hunter2".ljust(43, "x"),
        "hf_hunter2hunter2hunter2",
        "sk-proj-hunter2hunter2hunter2",
        "ghp_hunter2hunter2hunter2",
        "eyJhunter2hunter2.eyJhunter2hunter2.hunter2hunter2",
        "auth=hunter2hunter2",
        "PGPASSWORD=hunter2hunter2",
        "pwd: hunter2hunter2",
    ],
)
def test_what_has_the_name_or_the_form_of_a_secret_is_taken_out(text: str) -> None:
    left = Redactor().text(f"before {text}\nbehind")
    assert "hunter2" not in left
    assert left.startswith("before ")
    if not text.startswith("-----BEGIN PRIVATE"):
        assert left.endswith("\nbehind")


@pytest.mark.parametrize("text", sorted(HARMLESS))
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_in_json_a_secret_is_taken_out_by_its_key_or_its_form_and_all_else_stays_json() -> None:
    value = {"next_page_token": "", "db_password": "hunter2", "n": 1, "said": ["PASSWORD=hunter2", {"key": {"id": 3}}]}
    redacted = {"next_page_token": "", "db_password": GONE, "n": 1, "said": [f"PASSWORD={GONE}", {"key": {"id": 3}}]}
    assert Redactor().value(value) == redacted
    line = '{"level": "info", "api_key": "hunter2", "message": "as {\\"password\\": \\"hunter2\\"}", "n": 1}'
    assert json.loads(Redactor().text(line)) == {
        "level": "info",
        "api_key": GONE,
        "message": f'as {{"password": "{GONE}"}}',
        "n": 1,
    }


def test_known_secrets_are_taken_out_wherever_they_stand_and_short_ones_left_alone() -> None:
    redactor = Redactor(["correct horse", "correct horse battery", "on"])
    assert redactor.text("a correct horse battery, on: correct horse") == f"a {GONE}, on: {GONE}"
    shell = {"PWD": "/home/ada/project", "OLDPWD": "/home/ada", "HF_TOKEN": "x", "PATH": "/bin", "PGPASSWORD": "y"}
    assert secrets_of(shell) == ["x", "y"]
    assert is_secret_name("HF_TOKEN") and is_secret_name("MY_API_KEY") and is_secret_name("DB_PASSWORD")
    assert not is_secret_name("GPUCTL_TOKEN_FILE") and not is_secret_name("PATH") and not is_secret_name("KEYBOARD")


def files_of(bundle: Path) -> dict[str, str]:
    """The texts of the archive, by name."""
    found = {}
    with tarfile.open(bundle) as archive:
        for entry in archive:
            opened = archive.extractfile(entry)
            assert opened is not None and entry.mode == 0o600
            found[entry.name.removeprefix("gpufleet-bundle/")] = opened.read().decode()
    return found


def test_a_bundle_holds_state_and_logs_and_none_of_the_secrets_that_were_planted(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted = {f"planted-{number}-secret" for number in range(11)}
    left = iter(sorted(planted))
    token = make_token()
    write_token_file(tmp_path / "my.token", token)
    monkeypatch.setenv("GPUCTL_TOKEN_FILE", str(tmp_path / "my.token"))
    in_environment = next(left)
    monkeypatch.setenv("HF_TOKEN", in_environment)
    monkeypatch.setenv("NCCL_SECRETIVE", next(left))
    healthy(fake)
    fake.server.settings.add(name="store", value=f"postgresql://ada:{next(left)}@db/fleet", origin="flag")
    job = cluster.running()
    job.spec.argv.extend(["--wandb", next(left), f"PASSWORD={next(left)}"])
    job.spec.env["NOTHING_SPECIAL"] = next(left)
    job.spec.notify = f"https://hooks.example.com/{next(left)}"
    job.exit_message = f"it said: api_key={next(left)}"
    fake.jobs = {job.id: job}
    log = f"serving token={next(left)} with {in_environment} and {make_token()}\nsecond line\n"
    fake.program_logs = {"scheduler": log.encode(), "agent": b"agent's own line\n"}
    state = tmp_path / "state" / "gpufleet"
    (state / "agent" / "logs").mkdir(parents=True)
    (state / "agent" / "logs" / "agent.log").write_text(f"kept here: secret: {next(left)}\n")
    (state / "agent" / "agent.token").write_text(token)
    config = tmp_path / "config" / "gpufleet"
    config.mkdir(parents=True)
    (config / "scheduler.toml").write_text(f'store = "postgresql://u:{next(left)}@db/x"\nport = 50052\n')

    bundle = tmp_path / "bundle.tar.gz"
    done = gpuctl("doctor", "--bundle", str(bundle))
    assert done.code == 0, done.err
    assert "Read it before you give it away" in done.err
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    files = files_of(bundle)
    everything = "\n".join(files.values())
    assert not [secret for secret in (*planted, token) if secret in everything]
    assert "gf_…" in everything and next(left, None) is None, "something was not planted"

    assert {found["what"] for found in json.loads(files["findings.json"])} >= {"settings", "port", "node n1"}
    assert json.loads(files["versions.json"])["installed"]["grpcio"]
    assert json.loads(files["nodes.json"])["nodes"][0]["name"] == "n1"
    (told,) = json.loads(files["queue.json"])["jobs"]
    assert (told["id"], told["spec"]["argv"], told["spec"]["env"]) == (str(job.id), ["7 words"], {})
    assert told["spec"]["name"] == "resnet" and told["exit_message"] == f"it said: api_key={GONE}"
    assert "second line" in files["logs/scheduler.log"] and files["logs/agent-n1.log"] == "agent's own line\n"
    assert files["here/agent/logs/agent.log"] == f"kept here: secret: {GONE}\n"
    assert "port = 50052" in files["here/config/scheduler.toml"]
    assert "NCCL_SECRETIVE" in files["environment.txt"].splitlines()
    asked = fake.asked("Queue")
    assert asked and all(request.omit_env for request in asked), "environments need not even leave the scheduler"


def test_a_bundle_is_made_where_no_scheduler_answers_and_one_call_that_fails_costs_no_other(
    fake: FakeScheduler, gpuctl: Gpuctl, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    with free_port() as port:
        done = run_here("doctor", "--bundle", str(bundle), "--scheduler", f"127.0.0.1:{port}")
    assert done.code == 1
    files = files_of(bundle)
    assert "could not be asked" in files["scheduler.txt"] and "FAILED" in files["findings.json"]
    # A person who is no admin gets no logs, and everything else.
    healthy(fake)
    fake.jobs = {13: job_pb2.Job(id=13, spec=cluster.spec("true"))}
    assert gpuctl("doctor", "--bundle", str(bundle)).code == 0
    files = files_of(bundle)
    assert "PERMISSION_DENIED" in files["logs/scheduler.log.txt"]
    assert json.loads(files["queue.json"])["jobs"][0]["id"] == "13"


def test_a_bundle_that_cannot_be_written_is_an_error_that_names_the_file(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.server = scheduler_pb2.GetServerInfoResponse()
    done = gpuctl("doctor", "--bundle", "/proc/bundle.tar.gz")
    assert done.code != 0 and "/proc/bundle.tar.gz cannot be written" in done.err
