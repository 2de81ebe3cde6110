"""The areas of tests, and the CPU seconds that `make test` may spend on each."""

from __future__ import annotations

from tests.rings.cost import Area


def within(names: str) -> tuple[str, ...]:
    """The folders of tests with these names."""
    return tuple(f"tests/{name}" for name in names.split())


PURE = Area(
    "pure: values, decisions, transcripts, texts",
    350,
    (
        *within("core node_agent/core fields gpufleet_lib series rules"),
        *within("store/test_stored_format.py store/test_stored_classes.py store/test_codec.py"),
    ),
)
"""Nothing here starts a program but by a call that waits for it: the leak check does not look at processes."""

AREAS = (
    PURE,
    Area("simulation", 150, ("tests/simulation",)),
    Area(
        "scheduler: engine, store, API",
        520,
        within("engine store api outputs audit backup leading logins metrics"),
    ),
    Area("node: agent, keeper, devices", 230, within("node_agent devices gpu")),
    Area("sessions: workers, gateway, pages", 450, within("inference gateway client dashboard page")),
    Area("command line, Python", 170, within("cli python")),
    Area("whole fleets of processes", 600, within("e2e pairs several_nodes containers services")),
    Area("drills, releases, fuzzing, packages", 130, within("drills releases fuzz packaging selftest")),
)
"""Budgets were measured by `make test` on two cores; the first area that has a test counts it."""
