"""`secret`: where a value comes from, and that it goes to the scheduler alone."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("data", "value"), [(b"hf_abc\n", "hf_abc"), (b"a\nb\r\n", "a\nb"), (b"x", "x"), (" ü ".encode(), " ü ")]
)
def test_a_value_comes_from_stdin_without_the_end_of_its_last_line(
    gpuctl: Gpuctl, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch, data: bytes, value: str
) -> None:
    piped(monkeypatch, data)
    done = gpuctl("secret", "set", "HF_TOKEN")
    assert (done.code, done.text) == (0, "secret HF_TOKEN of ada is set\n")
    assert fake.secrets == {"HF_TOKEN": value}
    piped(monkeypatch, data)
    assert gpuctl("secret", "set", "HF_TOKEN", "-o", "json").text.count(value) == 0


def test_a_value_comes_from_a_file_as_it_is(gpuctl: Gpuctl, fake: FakeScheduler, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("line\nline\n")
    assert gpuctl("secret", "set", "key", "--from-file", str(tmp_path / "key.pem")).code == 0
    assert fake.secrets == {"key": "line\nline\n"}
    missing = gpuctl("secret", "set", "key", "--from-file", str(tmp_path / "none"))
    assert missing.code == 3 and "cannot be read" in missing.err


def test_what_is_no_value_is_refused_and_not_shown(
    gpuctl: Gpuctl, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data, why in ((b"", "is empty"), (b"\n", "is empty"), (b"\xff-hidden", "is no text in UTF-8")):
        piped(monkeypatch, data)
        refused = gpuctl("secret", "set", "HF_TOKEN")
        assert refused.code == 2 and why in refused.err and "hidden" not in refused.err
    assert not fake.secrets
    assert gpuctl("secret", "set", "HF_TOKEN", "hf_abc").code == 2, "a value is no argument"


def test_a_person_is_asked_and_what_they_type_is_not_shown(fake: FakeScheduler) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "gpufleet.cli", "secret", "set", "HF_TOKEN"]
    environment = {**os.environ, "GPUCTL_SCHEDULER": fake.address}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        shown = b""
        while b"Value of HF_TOKEN" not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, b"hf_typed\n")
        try:
            while piece := os.read(ours, 1000):
                shown += piece
        except OSError:
            pass  # the terminal's other side has closed
        assert process.wait() == 0, shown
    os.close(ours)
    assert fake.secrets == {"HF_TOKEN": "hf_typed"}
    assert b"hf_typed" not in shown


def test_secrets_are_listed_by_name_and_removed(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    assert gpuctl("secret", "list").text == "No secrets. Set one with: gpuctl secret set NAME\n"
    fake.secrets = {"b": "value-of-b", "a": "value-of-a"}
    assert gpuctl("secret", "list", "-o", "name").text == "a\nb\n"
    shown = gpuctl("secret", "list", "--user", "ann").text
    assert shown.split()[:3] == ["NAME", "SET", "BY"] and "value" not in shown
    assert fake.asked("ListSecrets")[-1].user == "ann"
    assert gpuctl("secret", "rm", "a").text == "secret a of ada is removed; jobs that run keep it\n"
    gone = gpuctl("secret", "rm", "a")
    assert gone.code == 3 and "no secret 'a'" in gone.err


@pytest.mark.parametrize(
    ("typed", "why"),
    [("my.key", "not a variable's name"), ("=X", "Write it as NAME=X"), ("a=1b", "not a variable's name")],
)
def test_a_secret_needs_a_variable(gpuctl: Gpuctl, typed: str, why: str) -> None:
    refused = gpuctl("submit", "--secret", typed, "--", "true")
    assert refused.code == 2 and why.split()[0] in refused.err and "--secret" in refused.err


def test_one_variable_is_given_one_secret(gpuctl: Gpuctl) -> None:
    refused = gpuctl("submit", "--secret", "a=X", "--secret", "b=X", "--", "true")
    assert refused.code == 2 and "X is given two secrets" in refused.err
