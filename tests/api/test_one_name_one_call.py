"""The parts of a service are classes that it inherits from: none hides what another part is called by."""

from __future__ import annotations

import pytest

from scheduler.api.fleet.agents import AgentService
from scheduler.api.server import SchedulerService


@pytest.mark.parametrize("service", [SchedulerService, AgentService])
def test_no_part_hides_a_method_of_another_that_it_does_not_know(service: type) -> None:
    hidden = []
    for place, part in enumerate(service.__mro__[:-1]):
        for other in service.__mro__[place + 1 : -1]:
            if issubclass(part, other) or not other.__module__.startswith(("scheduler.", "gpufleet.scheduler.")):
                continue
            common = {name for name in vars(part).keys() & vars(other).keys() if not name.startswith("__")}
            hidden += [f"{part.__name__}.{name} hides that of {other.__name__}" for name in sorted(common)]
    assert not hidden
