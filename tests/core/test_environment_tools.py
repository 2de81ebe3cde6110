"""An environment that no suitable node can make is refused at submit; one node that can, or may, is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.state.replies import Refused
from scheduler.state.specs import EnvironmentTool, JobEnvironment, JobSpec, Resources
from tests.core.fleet import Fleet

CONDA = JobEnvironment(tool=EnvironmentTool.CONDA, what="environment.yml")
UV = JobEnvironment(tool=EnvironmentTool.UV, what="")
PIP = JobEnvironment(tool=EnvironmentTool.REQUIREMENTS, what="requirements.txt")


def refused(environment: JobEnvironment | None, *tools: tuple[str, ...], gpus: int = 0) -> Refused | None:
    """Why it is refused, with nodes n1, n2 … that have these tools; the first has GPUs."""
    fleet = Fleet(passes=False)
    for number, each in enumerate(tools, 1):
        node = fleet.add_node(f"n{number}", gpus=2 if number == 1 else 0)
        node.info = replace(node.info, environment_tools=each)
        for _ in fleet.join(node):
            pass
    spec = JobSpec(argv=("train",), name="train", cwd="", resources=Resources(gpus=gpus), environment=environment)
    turn = fleet.submit(spec)
    return turn.reply if isinstance(turn.reply, Refused) else None


@pytest.mark.parametrize(
    ("environment", "field", "program"), [(CONDA, "conda", "micromamba, mamba or conda"), (UV, "uv", "uv")]
)
def test_what_no_node_has_is_refused_with_its_field(environment: JobEnvironment, field: str, program: str) -> None:
    why = refused(environment, ("pip",), ("pip",))
    assert why is not None
    assert (why.reason, why.field) == ("NEVER_FITS", f"specs[0].environment.{field}")
    assert why.message == f"no node that could run this has {program} (n1, n2)"
    assert "--requirements" in why.next_step


def test_one_node_that_has_it_or_does_not_tell_is_enough() -> None:
    assert refused(CONDA, ("pip",), ("pip", "conda")) is None
    assert refused(UV, ("pip",), ()) is None
    assert refused(CONDA) is None, "no node is known yet"
    assert refused(PIP, ("pip",)) is None and refused(None, ("pip",)) is None


def test_only_nodes_that_could_hold_the_job_count() -> None:
    assert refused(CONDA, ("pip",), ("pip", "conda"), gpus=1) is not None
    assert refused(CONDA, ("pip", "conda"), ("pip",), gpus=1) is None
