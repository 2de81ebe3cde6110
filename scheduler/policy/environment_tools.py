"""Refuses an environment that no suitable node can make, as none has the tool."""

from ..state.ids import UserName
from ..state.nodes import Node
from ..state.replies import Refused
from ..state.specs import EnvironmentTool, JobSpec
from ..state.state import State
from .suitable_nodes import names_text, suitable_nodes

PROGRAMS = {EnvironmentTool.UV: "uv", EnvironmentTool.CONDA: "micromamba, mamba or conda"}
"""Tools that not every node has, and the programs that they are."""


def environment_tool_refusal(state: State, user: UserName, spec: JobSpec, field: str) -> Refused | None:
    """Why a user's job is refused whose environment is made by what no suitable node has.

    An agent that does not tell its tools may have each. `field` is the path of the spec in the request.
    """
    tool = None if spec.environment is None else spec.environment.tool
    if tool is None or tool not in PROGRAMS:
        return None
    lacking: list[Node] = []
    for node in suitable_nodes(state, user, spec):
        if not node.info.environment_tools or tool.value in node.info.environment_tools:
            return None
        lacking.append(node)
    if not lacking:
        return None
    return Refused(
        reason="NEVER_FITS",
        message=f"no node that could run this has {PROGRAMS[tool]} ({names_text(lacking)})",
        field=f"{field}.environment.{tool.value}",
        next_step="use --requirements or --setup; or install it on a node and start its agent again",
    )
