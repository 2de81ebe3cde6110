"""`make upgrade-drill`: a fleet of 0.1.0 is upgraded and goes back, program by program, by a seed and under load."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.drills.takeover.judging_takeovers import PROBLEMS_SHOWN
from tests.drills.upgrades.two_versions import newer, older
from tests.drills.upgrades.upgrade_drill import UpgradeDrill
from tests.drills.upgrades.upgrade_plan import UpgradeOrder
from tests.several_nodes.network import Network, NotPermitted

EXIT_NOT_POSSIBLE = 2


def main() -> int:
    """Read the command line and run the drill."""
    parser = argparse.ArgumentParser(prog="make upgrade-drill", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="the same order as of this one; a new one by default")
    parser.add_argument("--nodes", type=int, default=2, help="nodes, each with its agent (2)")
    parser.add_argument("--rounds", type=int, default=3, help="how often agents and gateway go back and forth (3)")
    parser.add_argument("--rate", type=float, default=4.0, help="submits each second (4)")
    parser.add_argument("--plan", action="store_true", help="print the steps and do nothing")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a drill that went well, too")
    given = parser.parse_args()
    if given.nodes < 1 or given.rounds < 0 or given.rate <= 0:
        parser.error("there is a node, there are no fewer than 0 rounds, and somebody submits")
    seed = given.seed if given.seed is not None else secrets.randbelow(10**6)
    order = UpgradeOrder(seed=seed, nodes=given.nodes, rounds=given.rounds, submits_per_s=given.rate)
    if given.plan:
        print("\n".join(map(str, order.plan())))
        return 0
    return run(order, keep=given.keep)


def run(order: UpgradeOrder, *, keep: bool) -> int:
    """A drill in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"upgrades-{order.seed}-"))
    before = older(folder / "older")
    if isinstance(before, str):
        print(before, file=sys.stderr)
        shutil.rmtree(folder)
        return EXIT_NOT_POSSIBLE
    after = newer(folder / "newer")
    print(f"seed {order.seed}: {len(order.plan())} steps, {os.cpu_count()} CPUs, in {folder}", flush=True)
    try:
        with Network() as network:
            drill = UpgradeDrill(order, folder, network, (before, after), lambda line: print(line, flush=True))
            problems = asyncio.run(drill.run())
    except NotPermitted as problem:
        print(f"networks of their own cannot be made here: {problem}", file=sys.stderr)
        return EXIT_NOT_POSSIBLE
    print("\n".join(problems[:PROBLEMS_SHOWN]))
    if not problems and not keep:
        shutil.rmtree(folder)
    print(f"load {os.getloadavg()[1]:.1f}; {'everything is as it should be' if not problems else 'NOT GOOD'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
