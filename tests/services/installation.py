"""gpufleet as it is installed on a machine of a test: wherever the checkout lies, services find it at PLACE.

A service has a /tmp of its own, and a checkout may lie below /tmp or in a closed folder. So the machine gets what a
wheel holds, in an environment that borrows the packages of the one that runs the tests.
"""

from __future__ import annotations

import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.drills.upgrades.two_versions import newer

PLACE = Path("/run/all accounts/gpufleet")
"""Where it is on the machine. The space shows that units quote what they name."""
GPUCTL = f"""#!/bin/sh
exec "{PLACE}/bin/python" -P -m gpufleet.cli "$@"
"""


def lay_out(folder: Path) -> Sequence[Path]:
    """Make the environment in the folder; the folders that the machine must show as `PLACE/borrowed/1` and so on."""
    venv.create(folder, symlinks=True)
    newer(folder)
    borrowed = [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    shown = [PLACE / "site", *(PLACE / "borrowed" / str(number) for number in range(1, len(borrowed) + 1))]
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "gpufleet.pth").write_text("".join(f"{each}\n" for each in shown))
    program = folder / "bin" / "gpuctl"
    program.write_text(GPUCTL)
    program.chmod(0o755)
    return borrowed
