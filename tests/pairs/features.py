"""The features of a job, and what happens to it: the one table that rows, commands and the oracle are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args, get_type_hints

YesNo = Literal["no", "yes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job: a level of each feature. The first level is that of a job without the feature."""

    gpus: Literal["none", "one", "share"] = "none"
    """On each node."""
    nodes: Literal["one", "two"] = "one"
    array: YesNo = "no"
    """Two items, 1 and 2."""
    upload: YesNo = "no"
    file: YesNo = "no"
    environment: Literal["none", "requirements", "setup"] = "none"
    image: YesNo = "no"
    download: YesNo = "no"
    ends: Literal["well", "badly", "badly once"] = "well"
    """What the command exits with: 0, 3, or 3 in its first attempt alone."""
    retries: YesNo = "no"
    on_timeout: Literal["ends", "requeued"] = "ends"
    limit: Literal["none", "an hour"] = "none"
    after: Literal["nothing", "ok", "fail"] = "nothing"
    """A job that ended before, in that way."""
    gpu_mode: Literal["none", "preferred", "never"] = "none"
    isolation: Literal["shared account", "own account"] = "shared account"
    """How the nodes run jobs: nothing that is typed."""
    secret: YesNo = "no"
    variable: YesNo = "no"
    typed: Literal["submit", "run", "run -i", "shell"] = "submit"
    output_file: YesNo = "no"
    notify: Literal["no", "command", "URL"] = "no"
    executes: YesNo = "no"
    """Another command runs in the job, by gpuctl exec."""
    forward: YesNo = "no"
    """Bytes pass a port of the job, by gpuctl forward."""
    waits_by: Literal["id", "name", "label"] = "id"
    hold: YesNo = "no"
    """Submitted held, and released."""
    update: Literal["no", "limit", "name"] = "no"
    """What gpuctl update changes while the job runs."""
    process: Literal["plain", "nice", "rlimit"] = "plain"
    group: YesNo = "no"
    """Of a group with a cap that leaves room."""
    band: Literal["normal", "high"] = "normal"
    preemptible: YesNo = "no"
    event: Literal[
        "nothing",
        "cancel",
        "hold",
        "time limit",
        "preemption",
        "agent killed",
        "scheduler killed",
        "node lost",
        "disk full",
        "store restored",
    ] = "nothing"
    """What happens to the job while its first attempt runs."""


FEATURES: dict[str, tuple[str, ...]] = {each.name: get_args(get_type_hints(Row)[each.name]) for each in fields(Row)}
"""The levels of each feature, the plain one first."""


def levels(row: Row) -> dict[str, str]:
    """The features of a row that are not plain."""
    return {name: level for name, level in asdict(row).items() if level != FEATURES[name][0]}


def row_of(chosen: dict[str, str]) -> Row:
    """The row with these levels, and the plain one of each other feature."""
    for name, level in chosen.items():
        assert level in FEATURES[name], f"{name} has no level {level!r}"
    return Row(**chosen)  # type: ignore[arg-type]
