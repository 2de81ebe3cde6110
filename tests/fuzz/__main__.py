"""`make fuzz`: real programs, every service and every port, and whatever nobody should send, drawn from a seed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.fuzz.run import Order, fuzz

MESSAGES = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="send again what this one sent; a new one by default")
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"how many are sent ({MESSAGES:,})")
    parser.add_argument("--only", default="", help="what has this in its name, such as Scheduler/Submit or WebSocket")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a run that went well, too")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(10**6)
    order = Order(seed=seed, messages=arguments.messages, only=arguments.only)
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{seed}-"))
    print(f"seed {seed}: {order.messages:,} messages, in {folder}", flush=True)
    # Who writes to connections that the other side has cut is told so by asyncio each time.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    report = asyncio.run(fuzz(order, folder / "fleet"))
    print(report)
    if report.is_good and not arguments.keep:
        shutil.rmtree(folder)
    else:
        print(f"all logs are in {folder}")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
