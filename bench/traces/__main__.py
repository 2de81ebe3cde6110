"""`make traces`: replay logs of real machines through the scheduler's core and print what its decisions are worth."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .easy import easy_starts
from .figures import forecast_figures, forecast_lines, wait_lines
from .logs import Log, read_log
from .replay import Replay

FOLDER = Path(__file__).parents[3] / "shared" / "traces"
LOGS = {"kth": "KTH-SP2-1996-2.swf.gz", "sdsc": "SDSC-BLUE-2000-4.2-cln.swf.gz"}
"""Files of the Parallel Workloads Archive, in the folder `queue` of the traces."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what is there; what is not is named."""
    flags = argparse.ArgumentParser(prog="make traces", description=__doc__)
    flags.add_argument("--traces", type=Path, default=FOLDER, help="where the traces lie (default ../shared/traces)")
    flags.add_argument("--only", choices=sorted(LOGS), help="this log alone")
    flags.add_argument("--jobs", type=int, default=8_000, help="the first so many jobs of each (default 8,000)")
    flags.add_argument("--no-forecasts", action="store_true", help="waits alone, which takes a quarter of the time")
    given = flags.parse_args(arguments)
    for name, file in LOGS.items():
        path = given.traces / "queue" / file
        if given.only not in (None, name):
            continue
        if not path.exists():
            print(f"SKIPPED {name}: there is no {path}; name the folder of the traces with --traces")
            continue
        _measure(read_log(path, name, given.jobs), is_forecasting=not given.no_forecasts)
    return 0


def _measure(log: Log, *, is_forecasting: bool) -> None:
    print(f"{log.name}: {len(log.jobs):,} jobs on {log.devices} devices", flush=True)
    _tell("plain EASY", wait_lines(log, easy_starts(log)))
    _tell("the core, all jobs of one user", wait_lines(log, Replay(log, as_one_user=True).run()))
    replay = Replay(log, is_forecasting=is_forecasting)
    starts = replay.run()
    _tell("the core, users in turns", wait_lines(log, starts))
    if is_forecasting:
        _tell("what jobs were told", forecast_lines(forecast_figures(log, starts, replay.told)))


def _tell(what: str, figures: Iterable[str]) -> None:
    print(f"  {what}: {'; '.join(figures)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
