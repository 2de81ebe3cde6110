"""The networks themselves: what a killed run leaves behind, and several runs at once."""

from __future__ import annotations

import subprocess
import sys

from tests.several_nodes.network import NAMESPACES, Network, system

SWEEPERS = 4
LEFT = 12


def test_runs_that_begin_at_once_all_sweep_what_a_killed_one_left(network: Network) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = [f"gf{ended.pid}-late{number}" for number in range(LEFT)]
    for name in left:
        system("ip", "netns", "add", name)

    command = [sys.executable, "-c", "from tests.several_nodes.network import sweep; sweep()"]
    sweepers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(SWEEPERS)]

    assert [(each.communicate()[1], each.returncode) for each in sweepers] == [("", 0)] * SWEEPERS
    assert not [name for name in left if (NAMESPACES / name).exists()]
    assert (NAMESPACES / network.switch).exists(), "what a run has that goes on must stay"
