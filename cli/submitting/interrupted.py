"""What is said where somebody did not wait for the answer to a submit."""

from __future__ import annotations

import sys


def tell_interrupted() -> None:
    """Say what is known, and what shows the rest."""
    said = "interrupted before the scheduler answered; whether there is a job: gpuctl queue --mine"
    print(f"gpuctl: {said}", file=sys.stderr)
