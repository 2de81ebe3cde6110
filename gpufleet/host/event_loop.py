"""The event loop of a program: uvloop where it is installed, asyncio's own elsewhere. Programs begin theirs here.

What a program's own processes wait for, and what its users notice, is the same under both: uvloop takes less processor
time. It is for Linux alone (`pip install 'gpufleet[uvloop]'`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.host.facts import first_installed

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

AUTO, ASYNCIO, UVLOOP = "auto", "asyncio", "uvloop"
CHOICES = (AUTO, ASYNCIO, UVLOOP)

EVENT_LOOP_VARIABLE = "GPUFLEET_EVENT_LOOP"
"""For all programs of an account, and for workers, which have no settings file."""


def run(main: Coroutine[Any, Any, T], choice: str) -> T:
    """What `asyncio.run` does, on the loop of this choice: auto, asyncio or uvloop; an empty one is auto.

    Raises INVALID_ARGUMENT for another word, EXTRA_MISSING for a uvloop that is not there.
    """
    try:
        made = _maker(choice or AUTO)
    except GpufleetError:
        main.close()
        raise
    import asyncio  # settings name the choices, and who reads settings alone does not wait for this

    with asyncio.Runner(loop_factory=made) as runner:
        return runner.run(main)


def running_loop_in_words() -> str:
    """What the running loop is, such as `uvloop 0.22.1`; `asyncio` is Python's own."""
    import asyncio

    module = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return f"uvloop {first_installed([UVLOOP])}" if module == UVLOOP else ASYNCIO


def _maker(choice: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if choice not in CHOICES:
        raise invalid(EVENT_LOOP_VARIABLE, f"{choice!r} is none of {', '.join(CHOICES)}", next_step="Leave it out.")
    if choice == ASYNCIO:
        return None
    try:
        import uvloop
    except ImportError:
        if choice == AUTO:
            return None
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            "the event loop uvloop is not installed",
            next_step=f"Install it with: pip install 'gpufleet[uvloop]', or set {EVENT_LOOP_VARIABLE}=auto",
        ) from None
    return uvloop.new_event_loop
