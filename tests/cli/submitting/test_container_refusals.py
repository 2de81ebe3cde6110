"""What does not go with a container is named as the option that was typed."""

from __future__ import annotations

from typing import Any

import pytest
from gpufleet.v1 import job_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.submitting.requests import in_options
from scheduler.wire.container import container_of


@pytest.mark.parametrize(
    ("tool", "what", "option"),
    [
        ("requirements", "requirements.txt", "--requirements"),
        ("uv", True, "--uv"),
        ("conda", "environment.yml", "--conda"),
        ("setup", "uv sync", "--setup"),
    ],
)
def test_an_environment_of_the_nodes_python_is_refused_by_the_option_that_asks_for_it(
    tool: str, what: Any, option: str
) -> None:
    spec = job_pb2.JobSpec(container=job_pb2.ContainerSettings(image="busybox"))
    setattr(spec.environment, tool, what)
    with pytest.raises(GpufleetError) as caught:
        container_of(spec, "specs[0]")
    assert in_options(caught.value).message.startswith(f"{option}: is made of the node's Python")
