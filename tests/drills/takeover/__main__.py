"""`make takeover-drill`: leaders, stores and networks that fail, by a seed, and how soon somebody serves again."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.drills.takeover.drill import TakeoverDrill
from tests.drills.takeover.judging_takeovers import PROBLEMS_SHOWN
from tests.drills.takeover.plan import TakeoverOrder
from tests.several_nodes.network import Network, NotPermitted
from tests.store.postgres_server import programs

EXIT_NOT_PERMITTED = 2


def main() -> int:
    """Read the command line and run the drill."""
    parser = argparse.ArgumentParser(prog="make takeover-drill", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="the same faults as of this one; a new one by default")
    parser.add_argument("--kills", type=int, default=20, help="leaders killed (20)")
    parser.add_argument("--pauses", type=int, default=20, help="leaders paused, and continued later (20)")
    parser.add_argument("--store-kills", type=int, default=5, help="how often PostgreSQL is killed (5)")
    parser.add_argument("--losses", type=int, default=2, help="of each of the three ways (2)")
    parser.add_argument("--store-away", type=float, default=30.0, help="seconds that PostgreSQL is away (30)")
    parser.add_argument("--rate", type=float, default=10.0, help="submits each second (10)")
    parser.add_argument("--plan", action="store_true", help="print the faults and do nothing")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a drill that went well, too")
    given = parser.parse_args()
    if min(given.kills, given.pauses, given.store_kills, given.losses) < 0 or given.rate <= 0:
        parser.error("there are no fewer than 0 faults of a kind, and somebody submits")
    order = TakeoverOrder(
        seed=given.seed if given.seed is not None else secrets.randbelow(10**6),
        kills=given.kills,
        pauses=given.pauses,
        store_kills=given.store_kills,
        losses=given.losses,
        store_away_s=given.store_away,
        submits_per_s=given.rate,
    )
    if given.plan:
        print("\n".join(map(str, order.plan())))
        return 0
    return run(order, keep=given.keep)


def run(order: TakeoverOrder, *, keep: bool) -> int:
    """A drill in a folder of its own."""
    found = programs()
    if isinstance(found, str):
        print(found, file=sys.stderr)
        return EXIT_NOT_PERMITTED
    folder = Path(tempfile.mkdtemp(prefix=f"takeover-{order.seed}-"))
    folder.chmod(0o711)  # the store runs as an account that may do nothing else
    print(f"seed {order.seed}: {len(order.plan())} faults, {os.cpu_count()} CPUs, in {folder}", flush=True)
    try:
        with Network() as network:
            drill = TakeoverDrill(order, folder, network, found, lambda line: print(line, flush=True))
            problems = asyncio.run(drill.run())
    except NotPermitted as problem:
        print(f"networks of their own cannot be made here: {problem}", file=sys.stderr)
        return EXIT_NOT_PERMITTED
    print("\n".join(problems[:PROBLEMS_SHOWN]))
    if not problems and not keep:
        shutil.rmtree(folder)
    print(f"load {os.getloadavg()[1]:.1f}; {'everything is as it should be' if not problems else 'NOT GOOD'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
