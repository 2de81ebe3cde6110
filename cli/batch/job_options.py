"""What `gpuctl batch --job` takes for its job: of submit's options those that a batch can use."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from gpufleet.errors import invalid
from gpufleet.fleet.submitting.job_options import JobOptions

from ..options import in_panel

RETRIES = 3
"""A batch goes on where it was: one that was killed is begun again so often, where --retries does not say."""

of_job = in_panel("The job of --job")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJobOptions:
    """As they were typed; `job` is whether there is to be one."""

    job: Annotated[bool, of_job("--job", help="Run it as a job of yours, from the queue, and print its id.")] = False
    gpus: Annotated[int | None, of_job("--gpus", metavar="N", help="GPUs of the job itself; none by default.")] = None
    cpus: Annotated[int | None, of_job("--cpus", metavar="N", help="CPUs to reserve, 1 by default.")] = None
    memory: Annotated[str | None, of_job("--memory", metavar="SIZE", help="Memory to reserve: 4GB.")] = None
    name: Annotated[str | None, of_job("--name", metavar="NAME", help="Its name; else batch-MODEL.")] = None
    band: Annotated[str | None, of_job("--band", metavar="BAND", help="low, normal, high or urgent.")] = None
    time_limit: Annotated[str | None, of_job("--time-limit", metavar="TIME", help="Stop it after this: 90m.")] = None
    retries: Annotated[
        int | None,
        of_job("--retries", metavar="N", min=0, help=f"Begin it again so often after a failure, {RETRIES} by default."),
    ] = None
    nodelist: Annotated[list[str] | None, of_job("--nodelist", metavar="NODE,…", help="Only these nodes.")] = None
    exclude: Annotated[list[str] | None, of_job("--exclude", metavar="NODE,…", help="None of these nodes.")] = None
    node_label: Annotated[
        list[str] | None, of_job("--node-label", metavar="NAME=VALUE", help="Only nodes that carry this label.")
    ] = None
    label: Annotated[
        list[str] | None, of_job("--label", metavar="NAME=VALUE", help="A label, for people and filters.")
    ] = None
    after: Annotated[
        list[str] | None, of_job("--after", metavar="ID[:ok|any|fail],…", help="Run it after another job.")
    ] = None
    begin: Annotated[str | None, of_job("--begin", metavar="TIME", help="Not before this time: 18:30, or 2h.")] = None
    notify: Annotated[
        str | None, of_job("--notify", metavar="CMD|URL", help="Told of its course, as with gpuctl submit.")
    ] = None
    python: Annotated[
        str | None,
        of_job(
            "--python", metavar="PATH", help="The interpreter with gpufleet on its node; by default this one's path."
        ),
    ] = None

    def check_unsaid(self) -> None:
        """Raises INVALID_ARGUMENT where something is said of a job that is not asked for."""
        for each in fields(self):
            if each.name != "job" and getattr(self, each.name) is not None and not self.job:
                step = "Add --job, or leave it out."
                raise invalid(f"--{each.name.replace('_', '-')}", "it says something of a job", next_step=step)

    def as_job_options(self, name: str, env: list[str]) -> JobOptions:
        """The same as submit has them."""
        return JobOptions(
            gpus=self.gpus,
            cpus=self.cpus,
            memory=self.memory,
            name=self.name or name,
            band=self.band,
            time_limit=self.time_limit,
            retries=RETRIES if self.retries is None else self.retries,
            nodelist=self.nodelist,
            exclude=self.exclude,
            node_label=self.node_label,
            label=self.label,
            after=self.after,
            begin=self.begin,
            notify=self.notify,
            env=env,
        )
