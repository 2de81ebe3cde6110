"""What units say: systemd reads them without a complaint, and finds little that they expose."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.services.units import MODULES, Unit, quoted
from tests.cli.conftest import Gpuctl

EXPOSURE_MAX = 3.0
"""Of 10, by `systemd-analyze security`; what is not hardened at all has 9.6."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")


def unit(program: str, *options: str, **more: object) -> Unit:
    return Unit(program=program, python=Path(sys.executable), options=options, version=252, **more)  # type: ignore[arg-type]


@needs_systemd
@pytest.mark.parametrize("program", MODULES)
@pytest.mark.parametrize("is_of_user", [False, True])
def test_systemd_reads_a_unit_without_a_complaint(program: str, is_of_user: bool, tmp_path: Path) -> None:
    written = unit(program, "--token-file", "/x/a token", is_of_user=is_of_user)
    (tmp_path / written.name).write_text(written.text())
    analyze = ["systemd-analyze", *(["--user"] if is_of_user else []), "verify", "--man=no"]
    done = subprocess.run(
        [*analyze, str(tmp_path / written.name)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path)},
        timeout=60,
    )
    assert written.name not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


@needs_systemd
@pytest.mark.parametrize("program", ["scheduler", "gateway"])
def test_what_a_unit_exposes_is_little(program: str, tmp_path: Path) -> None:
    written = unit(program)
    (tmp_path / written.name).write_text(written.text())
    analyze = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(tmp_path / written.name)]
    said = subprocess.run(analyze, capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found is not None and float(found[1]) <= EXPOSURE_MAX, said


def test_a_file_of_root_is_handed_over_as_a_credential() -> None:
    text = unit("gateway", "--token-file", "/etc/a b.token", "--port", "443").text()
    assert "LoadCredential=token:/etc/a b.token" in text
    assert "--token-file %d/token --port 443" in text
    # Its jobs read the certificate, too.
    text = unit("agent", "--token-file", "/t", "--ca-file", "/ca.pem").text()
    assert "--token-file %d/token --ca-file /ca.pem" in text


def test_words_are_quoted_so_that_systemd_expands_nothing() -> None:
    assert [quoted(word) for word in ("a", "", "a b", 'a"b', "100%", "$HOME", "a;b")] == [
        "a",
        '""',
        '"a b"',
        '"a\\"b"',
        "100%%",
        "$$HOME",
        '"a;b"',
    ]


def test_an_agent_is_given_a_group_of_its_own_where_systemd_can() -> None:
    assert "DelegateSubgroup" not in unit("agent").text()
    newer = Unit(program="agent", python=Path("/python"), version=254).text()
    assert "Delegate=yes\nDelegateSubgroup=agent\n" in newer and "KillMode=process\n" in newer


def test_what_would_be_done_is_shown_without_systemd_and_without_root(gpuctl: Gpuctl) -> None:
    shown = gpuctl("install", "scheduler", "--dry-run", "--", "--port", "0").text
    assert "ExecStart=" in shown and "--port 0" in shown and "# systemctl enable gpufleet-scheduler.service" in shown
