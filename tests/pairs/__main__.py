"""`make pairs`: all pairs of features, or all triples, of a seed; or one row by itself."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys

from tests.fork_server import starting
from tests.pairs.course import Result
from tests.pairs.covering import covering_rows
from tests.pairs.features import FEATURES, levels, row_of
from tests.pairs.run import rows_that_can_run, run_rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pairs", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="replay the rows of this one; a new one by default")
    parser.add_argument("--strength", type=int, default=2, choices=(1, 2, 3), help="3 for triples")
    parser.add_argument("--only", default="", metavar="FEATURE,…", help=f"of {', '.join(FEATURES)}")
    parser.add_argument("--row", metavar="FEATURE=LEVEL,…", action="append", help="this row alone; repeatable")
    parser.add_argument("--list", action="store_true", help="print the rows and run none")
    arguments = parser.parse_args()
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    only = [each for each in arguments.only.split(",") if each]
    if unknown := sorted({*only} - FEATURES.keys()):
        parser.error(f"there is no feature {', '.join(unknown)}")
    if arguments.row is not None:
        rows = [row_of(dict(each.split("=", 1) for each in row.split(",") if each)) for row in arguments.row]
    else:
        rows = covering_rows(seed, strength=arguments.strength, only=only)
        print(f"{len(rows)} rows of seed {seed}, strength {arguments.strength}", flush=True)
    if arguments.list:
        print(*[",".join(f"{name}={level}" for name, level in levels(row).items()) for row in rows], sep="\n")
        return 0
    rows, why_not_all = rows_that_can_run(rows)
    if why_not_all:
        print(f"without rows that need an image: {why_not_all}")
    starting.install()
    try:
        results = asyncio.run(run_rows(rows, say))
    finally:
        starting.servers.close()
    print(f"{sum(each.is_good for each in results)} of {len(results)} rows are as they must be")
    return 0 if all(each.is_good for each in results) else 1


def say(result: Result) -> None:
    """Print a row that is not as it must be."""
    if not result.is_good:
        print(f"\n{result}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
