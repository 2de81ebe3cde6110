"""Refuses what can run on no node, as its folder or program lies where isolated jobs see only what is their own."""

from collections.abc import Sequence

from gpufleet.jobs.runs import private_folder_above

from ..state.ids import UserName
from ..state.nodes import Node
from ..state.replies import Refused
from ..state.specs import JobSpec
from ..state.state import State
from .suitable_nodes import names_text, suitable_nodes


def private_folder_refusal(state: State, user: UserName, spec: JobSpec, field: str) -> Refused | None:
    """Why a user's job is refused whose folder or program is below /tmp, where every suitable node isolates jobs.

    `field` is the path of the spec in the request.
    """
    if spec.resources.in_container:
        return None
    for name, path in (("cwd", spec.cwd), ("argv", _program(spec))):
        if (private := private_folder_above(path)) and (nodes := _all_isolating(state, user, spec)):
            return Refused(
                reason="INVALID_ARGUMENT",
                message=f"{path[:500]} is in {private}, which is private to each job on every node that could run this "
                f"({names_text(nodes)})",
                field=f"{field}.{name}",
                next_step="upload the folder with --upload ., or use a folder that is not in /tmp",
            )
    return None


def _program(spec: JobSpec) -> str:
    """The path of its program; empty for a name that PATH finds."""
    program = spec.argv[0] if spec.argv else ""
    if "/" not in program or program.startswith("/") or not spec.cwd:
        return program if "/" in program else ""
    return f"{spec.cwd}/{program}"


def _all_isolating(state: State, user: UserName, spec: JobSpec) -> Sequence[Node]:
    """The nodes that could ever hold the job, if each of them isolates jobs; else none."""
    found: list[Node] = []
    for node in suitable_nodes(state, user, spec):
        if not node.info.job_accounts.is_isolating:
            return ()
        found.append(node)
    return found
