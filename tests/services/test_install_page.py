"""Every line of docs/install.md is typed as it stands, on a machine with a real systemd."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.services.machine import Machine

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "install.md"
LINE = re.compile(r"^head# (.+)$", re.MULTILINE)
SAID = {
    "gpuctl install scheduler --dry-run": "DynamicUser=yes",
    "gpuctl run --cwd / -- echo hello": "hello",
    "systemctl status --no-pager gpufleet-scheduler": "serving at 127.0.0.1:50051",
    "gpuctl uninstall agent": "jobs that run go on",
    "gpuctl uninstall scheduler": "its data stays in /var/lib/gpufleet/scheduler",
}
"""What some of them must say."""


def test_the_page_can_be_typed_line_by_line(machine: Machine) -> None:
    lines = LINE.findall(PAGE.read_text())
    assert set(SAID) <= set(lines)
    installs = 0
    for line in lines:
        said = machine.type(line)
        assert SAID.get(line, "") in said
        if line == "gpuctl install scheduler":
            installs += 1
            assert ("nothing to do" in said) == (installs == 2)
    assert "gpufleet" not in machine.type("ls /etc/systemd/system")
