"""`top`: every GPU in a line, in any order, on a terminal and without one."""

from __future__ import annotations

import json
import os

import pytest

from cli.render.table import Look
from cli.render.top import SORTS, sorted_devices, top_lines, totals
from tests.cli.cluster import nodes
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.golden import assert_golden
from tests.cli.terminal import Terminal


def devices() -> list:  # type: ignore[type-arg]
    found = []
    for node in nodes():
        for each in node.devices:
            each.node = node.name
            each.sample.memory_used_bytes = each.device.memory_bytes // 10 * (9 if each.job_id else 0)
            each.sample.power_mw, each.sample.temperature_c = 690_000 if each.job_id else 80_000, 30 + each.device.index
            each.user = "ada" if each.job_id else ""
            found.append(each)
    found[-1].ClearField("sample")
    return found


def test_every_gpu_is_a_line() -> None:
    shown = [totals(devices()), *top_lines(sorted_devices(devices(), "n"), Look())]
    assert_golden("top", "".join(f"{line}\n" for line in shown))


@pytest.mark.parametrize("sort", SORTS)
def test_what_is_most_comes_first_and_what_is_not_told_last(sort: str) -> None:
    found = sorted_devices(devices(), sort)
    assert len(found) == 11
    first = (found[0].node, found[0].device.index)
    assert first == (("n1", 7) if sort == "t" else ("n1", 0))


def test_without_a_terminal_it_is_printed_once(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.nodes = nodes()
    done = gpuctl("top")
    assert done.code == 0 and done.text.splitlines()[0].split()[:2] == ["NODE", "GPU"]
    assert len(json.loads(gpuctl("top", "-o", "json").text)["devices"]) == len(done.text.splitlines()) - 1
    assert gpuctl("top", "--sort", "lod").err.startswith('gpuctl: --sort: "lod" is none of')


def test_on_a_terminal_it_stays_sorts_scrolls_and_leaves(fake: FakeScheduler) -> None:
    fake.nodes = nodes()
    terminal = Terminal("top", environment={**os.environ, "GPUCTL_SCHEDULER": fake.address})
    try:
        at = terminal.wait_for("by node")
        terminal.type("u")
        at = terminal.wait_for("by load", at)
        terminal.type("\x1b[B")
        terminal.type("q")
        terminal.wait_for("\x1b[?1049l", at)
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
