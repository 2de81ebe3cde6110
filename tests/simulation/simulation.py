"""One run: a fleet, its people, what goes wrong, and in the end *heal, then it must converge*."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.story import sentence
from scheduler.state.jobs import Finished
from scheduler.state.records import AttemptEnded, AttemptVoided, JobFellBack, JobFinished, JobWarned, job_of
from scheduler.state.units import SECOND
from tests.simulation.checks import Checks
from tests.simulation.faults import Troubles
from tests.simulation.machine import DRIFT_MAX, Machine
from tests.simulation.restores import Restores
from tests.simulation.run import Run
from tests.simulation.scheduler import LIMITS
from tests.simulation.users import RUN_SECONDS_MAX, USERS, Users
from tests.simulation.world import Broken, World

JOBS = 40
SUBMIT_SECONDS = 150.0
TROUBLE_SECONDS = 240.0
LOOK_SECONDS = 5.0

QUIET_SECONDS_MAX = RUN_SECONDS_MAX + LIMITS.unreachable_span / SECOND
"""Once all works again, something is stored at least this often until all has ended: the longest run and the longest
span of a rule may follow each other, and nothing else takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run. `broken` is None when every rule held."""

    seed: int
    steps: int
    commits: int
    seconds: float
    broken: Broken | None
    trace: tuple[str, ...]
    story: tuple[str, ...]
    jobs: int
    """Jobs that ended, as the store tells it: arrays and their items among them."""
    asked: int
    """Jobs that were asked for, not refused, and not lost with a store that was put back."""
    digest: str
    """The same for the same seed, whatever process it runs in."""


def simulate(seed: int, *, is_traced: bool = False) -> Outcome:
    """Run one seed to its end."""
    return Simulation(seed, is_traced=is_traced).run()


class Simulation(Run[World]):
    """Five nodes, forty jobs, and everything that can go wrong."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        super().__init__(seed, World, is_traced=is_traced)
        self._rng, self._owners = self.world.rng("fleet"), self.world.rng("owners")
        self.machines = {machine.name: machine for machine in self._fleet()}
        self.world.checks = Checks(self.world, self.store, self.outputs, self.machines, self.place)
        self.users = Users(self.world, JOBS, SUBMIT_SECONDS)
        self.troubles = Troubles(self.world, self.machines, self.users, TROUBLE_SECONDS)
        self.restores = Restores(self.world, self.store, self.machines, self.users, self.troubles, TROUBLE_SECONDS)
        self._converged_by = 0.0
        self._records_seen = 0
        self._records_seen_at = 0.0

    def _fleet(self) -> list[Machine]:
        return [
            self._machine("n1", gpus=4, cpus=8, is_virtual=False),
            self._machine("n2", gpus=4, cpus=8, is_virtual=False),
            self._machine("n3", gpus=3, cpus=6, is_virtual=True),
            self._machine("n4", gpus=3, cpus=6, is_virtual=True),
            self._machine("n5", gpus=0, cpus=6, is_virtual=True),
        ]

    def _machine(self, name: str, *, gpus: int, cpus: int, is_virtual: bool) -> Machine:
        rate = 1.0 + self._rng.uniform(-DRIFT_MAX, DRIFT_MAX)
        # Of one fleet in two a node takes the jobs of one user alone.
        owner = self._owners.choice(("", USERS[0])) if name == "n4" else ""
        return Machine.made(self.world, name, gpus=gpus, cpus=cpus, rate=rate, is_virtual=is_virtual, owner=owner)

    def run(self) -> Outcome:
        """Run it to its end."""
        self.world.after(0.0, self._start_scheduler)
        for machine in self.machines.values():
            self.world.after(self._rng.uniform(0.1, 3.0), machine.start_agent)
        self.world.after(TROUBLE_SECONDS, self._heal)
        broken = self._play()
        accepted = [each for each in self.users.submissions if not each.refusal and not each.is_lost]
        return Outcome(
            seed=self.world.seed,
            steps=self.world.steps,
            commits=self.store.commits,
            seconds=self.world.now,
            broken=broken,
            trace=tuple(self.world.trace),
            story=tuple(self.story(broken.job)) if broken is not None and broken.job is not None else (),
            jobs=sum(self._has_ended(job) for each in accepted for job in range(each.job, each.job + each.size)),
            asked=sum(each.size for each in accepted),
            digest=self.digest(),
        )

    def _has_ended(self, number: int) -> bool:
        job = self.store.job(number)
        return job is not None and isinstance(job.state, Finished)

    def story(self, job: int) -> list[str]:
        """What is stored about a job, in order."""
        return [f"{at:11.6f} {sentence(record)}" for at, record in self.store.story if job_of(record) == job]

    def corners(self) -> set[str]:
        """What this run has met, for those who ask whether the runs meet enough."""
        seen: set[str] = set(self.world.met)
        for _, record in self.store.story:
            name = type(record).__name__
            match record:
                case AttemptEnded(needs_gpus=True):
                    seen.add(f"{name} needs GPUs")
                case JobFellBack(reason=reason):
                    seen.add(f"{name} {reason}")
                case AttemptEnded(ended=ended):
                    seen.add(f"{name} {ended.reason}")
                case AttemptVoided(reason=reason):
                    seen.add(f"{name} {reason}")
                case JobFinished(finished=finished, ended=last):
                    seen.add(f"{name} {finished.reason}")
                    if last is not None and not last.output_is_complete:
                        seen.add("output incomplete")
                case JobWarned(warning=warning):
                    seen.add(f"{name} {warning.kind.value}")
                case _:
                    seen.add(name)
        return seen

    def _away_seconds(self) -> float:
        return self.troubles.scheduler_away_seconds()

    # --- the end

    def _heal(self) -> None:
        """Nothing goes wrong any more; now all must come to its end."""
        self.world.note("everything works again")
        self.world.is_healed = True
        self.world.network.heal()
        self.troubles.heal()
        self._start_scheduler()
        self._converged_by = self.world.now + QUIET_SECONDS_MAX + self.users.seconds_left()
        self.world.after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        unanswered = [each.request_id for each in self.users.submissions if not each.job and not each.refusal]
        if not unanswered and not any(self.world.checks.unfinished()):
            self.world.checks.at_the_end()
            self.loop.stop()
            return
        if len(self.store.story) > self._records_seen:
            self._records_seen, self._records_seen_at = len(self.store.story), self.world.now
        quiet_seconds = self.world.now - self._records_seen_at
        if quiet_seconds > QUIET_SECONDS_MAX:
            why = f"nothing was stored for {quiet_seconds:.0f} s"
        elif self.world.now > self._converged_by:
            why = "there was time for all of it one after another"
        else:
            are_fewer = any(machine.is_gone for machine in self.machines.values())
            self.users.settle(list(self.machines), are_fewer=are_fewer)
            self.world.after(LOOK_SECONDS, self._look)
            return
        unfinished = list(self.world.checks.unfinished())
        job = next((int(word.split()[1]) for word in unfinished if word.startswith("job ")), None)
        raise Broken(f"it does not converge, and {why}: " + "; ".join([*unfinished, *unanswered])[:2000], job)
