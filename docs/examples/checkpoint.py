"""A run that is longer than its time limit: it saves where it is when it is told that the limit is near, and goes on
from there when it is begun again.

    gpuctl submit --time-limit 1h --signal USR1@5m --requeue-on-timeout --output-file train-%j.log \
        -- python docs/examples/checkpoint.py --steps 100000

At the limit the job is queued again in place of ending, until it exits by itself: with 0 when all steps are done.
Without gpufleet it is an ordinary program.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

SAVED_EVERY_STEPS = 1_000
"""How often it saves without being told: what a node that is lost costs at most."""


def load(file: Path) -> int:
    """The steps that were done before; none at the first start."""
    return int(file.read_text()) if file.exists() else 0


def save(file: Path, steps_done: int) -> None:
    """Whole or not at all: whoever kills this program in the middle leaves the save before."""
    unfinished = file.with_name(f".{file.name}.new")
    unfinished.write_text(f"{steps_done}\n")
    unfinished.replace(file)
    print(f"saved after step {steps_done}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Do so many steps, over as many starts as it takes.")
    parser.add_argument("--steps", type=int, default=100, help="steps in all (default: 100)")
    parser.add_argument("--step-seconds", type=float, default=0.1, help="time of one step (default: 0.1)")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"), help="the file to go on from")
    given = parser.parse_args()
    is_near = False

    def note(number: int, frame: object) -> None:
        """A handler only notes it: a step that is under way is finished first."""
        nonlocal is_near
        is_near = True

    signal.signal(signal.SIGUSR1, note)
    steps_done = load(given.checkpoint)
    print(f"attempt {os.environ.get('GPUFLEET_ATTEMPT', '1')} goes on from step {steps_done}", flush=True)
    while steps_done < given.steps:
        time.sleep(given.step_seconds)  # the work
        steps_done += 1
        if is_near or steps_done % SAVED_EVERY_STEPS == 0:
            save(given.checkpoint, steps_done)
            is_near = False
    save(given.checkpoint, steps_done)
    # Python gives up its handlers before it ends, and the signal by itself would end it as one that was killed.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    print("done", flush=True)


if __name__ == "__main__":
    main()
