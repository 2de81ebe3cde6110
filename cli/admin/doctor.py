"""`doctor`: what is wrong between here and the GPUs, and how to mend it."""

from __future__ import annotations

from ..declaring import Exit
from ..doctor.wishes import Wishes
from ..options import Printing


def doctor(
    options: Printing,
    wanted: Wishes,
) -> None:
    """Check the way from here to the GPUs, and say how to mend it."""
    from ..doctor.checks import run_doctor

    raise Exit(run_doctor(options.settings(), wanted))
