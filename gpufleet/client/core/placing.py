"""Where a batch goes: to the preferred backend as long as that is there or may come, else to the next one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .calls import Chunk, Rules
from .outcomes import Backend, ErrorKind, Failure, failure_of_status
from .workers import Condition, WorkerState, choose, tiers_of


class Placing:
    """Chooses among the workers of a client. `waits_until_s` is when a batch that waits is to be looked at again."""

    def __init__(self, rules: Rules, workers: Mapping[str, WorkerState]) -> None:
        self._rules = rules
        self._workers = workers
        self._missed_since_s: dict[Backend, float] = {}
        self.waits_until_s: float | None = None

    def forget(self) -> None:
        """Nobody waits for a backend any more."""
        self._missed_since_s.clear()

    @property
    def tiers(self) -> tuple[Backend, ...]:
        """The backends to ask, the preferred first."""
        return tiers_of(self._rules.backend, tuple(self._workers.values()))

    def is_fallback(self, worker: WorkerState) -> bool:
        """Whether it is of another backend than the preferred one."""
        tiers = self.tiers
        return bool(tiers) and worker.backend is not tiers[0]

    def next_tier(self, worker: WorkerState) -> int | None:
        """The place in `tiers` of the backend behind a worker's; None where there is none."""
        tiers = self.tiers
        if worker.backend not in tiers:
            return None
        following = tiers.index(worker.backend) + 1
        return following if following < len(tiers) else None

    def place(self, chunk: Chunk, now_s: float) -> WorkerState | Failure | None:
        """The worker for a batch; None where it is to wait, a Failure where there will be none."""
        tiers = self.tiers
        for backend in tiers[min(chunk.tier, len(tiers) - 1) :] if tiers else ():
            usable = [each for each in self._of(backend) if each.is_usable(now_s) and each.backend is backend]
            if usable:
                self._missed_since_s.pop(backend, None)
                if chunk.broken:
                    return self._place_alone(chunk, usable, now_s)
                free = [each for each in usable if each.has_room(now_s)]
                return choose(free, chunk.avoided) if free else None
            if self._is_worth_a_wait(backend, now_s, is_last=backend is tiers[-1]):
                return None
        return None if self._returns_for_sure(now_s) else self._no_worker(now_s)

    def let_go(self, suspects: Collection[Chunk]) -> None:
        """These are not asked any more: no worker is kept for them."""
        for worker in self._workers.values():
            if any(worker.kept_for is each for each in suspects):
                worker.kept_for = None

    def _place_alone(self, suspect: Chunk, usable: list[WorkerState], now_s: float) -> WorkerState | None:
        """The worker for a suspect; None until what it has is over. Until then it is kept, and gets nothing else."""
        kept = next((each for each in usable if each.kept_for is suspect), None)
        if kept is None:
            self.let_go([suspect])  # one that is of no use any more
            unkept = [each for each in usable if each.kept_for is None]
            if not unkept:
                return None
            kept = choose(unkept, suspect.avoided)
            kept.kept_for = suspect
        return kept if kept.is_free_for(suspect, now_s) else None

    def why_not_preferred(self, now_s: float) -> str:
        """Why the preferred backend is not asked, for people."""
        return "; ".join(each.describe(now_s) for each in self._of(self.tiers[0]))

    def _of(self, backend: Backend) -> list[WorkerState]:
        return [each for each in self._workers.values() if each.is_of(backend)]

    def _is_worth_a_wait(self, backend: Backend, now_s: float, *, is_last: bool) -> bool:
        workers = self._of(backend)
        if any(each.condition is Condition.UNKNOWN for each in workers):
            return True  # it is being asked, which does not take long
        since_s = self._missed_since_s.setdefault(backend, now_s)
        until_s = since_s + self._rules.start_wait_s
        may_come = any(
            each.may_come(now_s) or (is_last and each.condition is Condition.UNREACHABLE) for each in workers
        )
        if may_come and now_s < until_s:
            self._wait_for(min([until_s, *(each.held_until_s for each in workers if each.held_until_s > now_s)]))
            return True
        return False

    def _returns_for_sure(self, now_s: float) -> bool:
        """Whether nothing is left but what says itself when it is to be asked again: the deadline bounds that wait."""
        tiers = self.tiers
        times = [
            time_s
            for worker in self._workers.values()
            if worker.condition is Condition.READY and worker.backend in tiers
            for time_s in (worker.circuit.probes_at_s(now_s), worker.held_until_s)
            if time_s is not None and time_s > now_s
        ]
        for time_s in times:
            self._wait_for(time_s)
        return bool(times)

    def _wait_for(self, time_s: float) -> None:
        self.waits_until_s = time_s if self.waits_until_s is None else min(self.waits_until_s, time_s)

    def _no_worker(self, now_s: float) -> Failure:
        workers = list(self._workers.values())
        failed = next((each for each in workers if each.condition is Condition.FAILED), None)
        if failed is not None and not any(each.may_come(now_s) for each in workers):
            return Failure(ErrorKind.MODEL_DOWN, f"{failed.id}: {failed.why}", failed.status)
        if workers and all(each.condition is Condition.REFUSED for each in workers):
            first = workers[0]
            kind = failure_of_status(first.status, "").kind if first.status else ErrorKind.NO_WORKER
            return Failure(kind, f"{first.id}: {first.why}", first.status)
        words = "; ".join(each.describe(now_s) for each in workers) or "there is none"
        return Failure(ErrorKind.NO_WORKER, f"no worker was ready within {self._rules.start_wait_s:g} s: {words}")
