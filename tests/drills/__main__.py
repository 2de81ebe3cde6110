"""`make drill`: real processes, real links, faults drawn from a seed, and a checker that looks at it all afterwards."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.drills.database import SQLITE, STORES, NoDatabase, database
from tests.drills.drill import Order, drill, examine
from tests.drills.faults import SECONDS_PER_FAULT
from tests.drills.links import check_permitted
from tests.e2e.interpreters import NoInterpreter
from tests.several_nodes.network import Network, NotPermitted

MINUTES, NODES = 5.0, 3
MINUTES_MIN = 0.5
EXIT_NOT_PERMITTED = 2
ORDER = "order"
SHOWN = "/srv"
"""Where a drill lies whose jobs are isolated: they have a /tmp of their own."""
"""The file of a drill's folder with what was ordered."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make drill", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="replay the faults of this one; a new one by default")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long things go wrong ({MINUTES:g})")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"machines with an agent ({NODES})")
    parser.add_argument("--every", type=float, default=SECONDS_PER_FAULT, help="seconds from one fault to the next (5)")
    parser.add_argument("--store", choices=STORES, default=SQLITE, help=f"what the scheduler stores in ({SQLITE})")
    parser.add_argument("--all-hostile", action="store_true", help="hostile jobs try what only isolated ones cannot do")
    parser.add_argument("--restores", action="store_true", help="the store is put back now and then")
    parser.add_argument("--plan", action="store_true", help="print the faults and do nothing")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a drill that went well, too")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="look again at what a drill left")
    arguments = parser.parse_args()
    if arguments.minutes < MINUTES_MIN or arguments.nodes < 1 or arguments.every <= 0:
        parser.error(f"a drill has at least {MINUTES_MIN:g} minutes and 1 node, and its faults are apart")
    if arguments.check is not None:
        seed, seconds, nodes, every, store = (arguments.check / ORDER).read_text().split()
        order = Order(
            seed=int(seed),
            seconds=float(seconds),
            node_count=int(nodes),
            seconds_per_fault=float(every),
            store=store,
        )
        with database(store, arguments.check) as url:
            report = examine(order, arguments.check, url)
        print(report)
        return 0 if report.is_good else 1
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(10**6)
    order = Order(
        seed=seed,
        seconds=arguments.minutes * 60,
        node_count=arguments.nodes,
        seconds_per_fault=arguments.every,
        store=arguments.store,
        is_restored=arguments.restores,
        is_all_hostile=arguments.all_hostile,
    )
    if arguments.plan:
        print("\n".join(map(str, (*order.plan, *order.joins, *order.restores))))
        return 0
    return run(order, keep=arguments.keep)


def run(order: Order, *, keep: bool) -> int:
    """A drill in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"drill-{order.seed}-", dir=SHOWN if order.is_all_hostile else None))
    words = (order.seed, order.seconds, order.node_count, order.seconds_per_fault, order.store)
    (folder / ORDER).write_text(" ".join(map(str, words)) + "\n")
    print(f"seed {order.seed}: {order.seconds / 60:g} minutes, {order.node_count} nodes, in {folder}", flush=True)
    try:
        check_permitted()
        _ = order.python
        with database(order.store, folder) as url, Network() as network:
            report = asyncio.run(drill(order, folder, network, url))
    except (NoDatabase, NoInterpreter) as problem:
        print(f"no drill here: {problem}", file=sys.stderr)
        shutil.rmtree(folder)
        return EXIT_NOT_PERMITTED
    except NotPermitted as problem:
        account = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
        print(f"no drill here: network namespaces cannot be made ({account}): {problem}", file=sys.stderr)
        shutil.rmtree(folder)
        return EXIT_NOT_PERMITTED
    except BaseException:
        print(f"the drill itself failed; all of it is in {folder}; replay: {order.command}", file=sys.stderr)
        raise
    print(report)
    if report.is_good and not keep:
        shutil.rmtree(folder)
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
