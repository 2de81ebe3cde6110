"""Starts `probe.py` on a machine that a test describes, and asks it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PROBE = Path(__file__).with_name("probe.py")
ANSWER_SECONDS = 60.0
WAIT_SECONDS = 60.0
LEAVE_SECONDS = 60.0

Sample = dict[str, Any]


class Probe:
    """A process with the devices open; `with` ends it."""

    def __init__(self, environment: Mapping[str, str], *arguments: str) -> None:
        paths = [environment.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "gen")]
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROBE), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        )
        # It answers once the devices are open: what a test changes from here on happens to a running program.
        self.ask("status")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            # A thread that hangs in the driver must not keep the process.
            self._process.wait(LEAVE_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def ask(self, do: str, **options: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        assert ready, f"the probe did not answer {do!r} within {ANSWER_SECONDS} s"
        line = self._process.stdout.readline()
        assert line, f"the probe died at {do!r}"
        return json.loads(line)

    def samples(self) -> dict[str, Sample]:
        """The newest samples by UUID."""
        return {sample["uuid"]: sample for sample in self.ask("sample")}

    def wait_for(self, uuid: str, condition: Callable[[Sample], object]) -> Sample:
        """The first sample of the device for which the condition holds."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            sample = self.samples().get(uuid)
            if sample is not None and condition(sample):
                return sample
            assert time.monotonic() < deadline, f"still {sample}"
            time.sleep(0.01)
