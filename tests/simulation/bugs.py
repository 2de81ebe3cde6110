"""Bugs to plant: each breaks one rule in the real code, and the simulation must find out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from node_agent.core import adoption, attempt, duties, leavings
from node_agent.core.adoption import LaunchDecision
from node_agent.core.outcome import AttemptEnd
from scheduler import clock, engine, links, output_hub
from scheduler.api.fleet import results
from scheduler.core import attempts, deadlines, decide, gangs, gaps, jobs, nodes, warnings
from scheduler.core.decision import Decision
from scheduler.core.found import Found
from scheduler.core.live_ranks import live_attempt
from scheduler.policy import caps, fit
from scheduler.series.file import Accounted
from scheduler.series.history_file import HistoryFile
from scheduler.series.ledger import Ledger
from scheduler.state import apply, durable, invariants, live
from scheduler.state.events import JobsSubmitted, RankReady
from scheduler.state.indexes import indexes
from scheduler.state.jobs import Job, Stopping, rank_keys
from scheduler.state.kept import KeptCopy
from scheduler.state.records import AttemptEnded
from scheduler.state.state import State
from scheduler.state.units import Instant, after

Plant = Callable[[pytest.MonkeyPatch], None]


def the_fence_is_ignored(plant: pytest.MonkeyPatch) -> None:
    """The keeper lets an attempt run on without its scheduler."""
    plant.setattr(attempt, "fence_deadline_of", lambda limits, sent_us: None)


def nobody_waits_for_the_fence(plant: pytest.MonkeyPatch) -> None:
    """The scheduler replaces an attempt as soon as its node is lost."""
    plant.setattr(deadlines, "given_up_at", lambda state, node, job: after(node.heard_at, state.limits.node_lease))


def commands_leave_before_the_commit(plant: pytest.MonkeyPatch) -> None:
    """A launch and a Forget are acted on while their reason may still be lost."""

    def addressed(self: Any, decision: Decision) -> Iterator[Any]:
        for command in decision.commands:
            node = self._state.live.nodes.get(command.node)
            if node is not None:
                self._link.send(command, node.stream)
        return iter(())

    plant.setattr(engine.Engine, "_addressed", addressed)


def replies_leave_before_the_commit(plant: pytest.MonkeyPatch) -> None:
    """A person is told what may never become true."""
    durably = engine.Engine._store_until_durable

    async def soon(self: Any, commit: Any, batch: Any) -> None:
        self.later = asyncio.ensure_future(durably(self, commit, batch))

    plant.setattr(engine.Engine, "_store_until_durable", soon)


def a_launch_is_not_idempotent(plant: pytest.MonkeyPatch) -> None:
    """A keeper that is asked twice starts twice."""
    plant.setattr(adoption, "decide_launch", lambda known: LaunchDecision.START)


def a_stop_frees_the_devices(plant: pytest.MonkeyPatch) -> None:
    """What is told to stop holds nothing any more, while it still runs."""
    index, unindex = indexes.index, indexes.unindex

    def unless_stopping(change: Callable[[Any, Job], None]) -> Callable[[Any, Job], None]:
        return lambda state, job: None if isinstance(job.state, Stopping) else change(state, job)

    plant.setattr(apply, "index", unless_stopping(index))
    plant.setattr(durable, "index", unless_stopping(index))
    plant.setattr(durable, "unindex", unless_stopping(unindex))


def an_end_counts_before_its_output_is_stored(plant: pytest.MonkeyPatch) -> None:
    """The last lines may be lost, and nobody says so."""
    plant.setattr(live.Live, "output_is_stored", lambda self, key, exit_: True)


def output_is_acknowledged_before_it_is_synced(plant: pytest.MonkeyPatch) -> None:
    """A node deletes what the scheduler would lose in a crash."""
    append = output_hub.OutputHub.append

    async def append_and_tell(self: Any, chunks: Any) -> None:
        await append(self, chunks)
        for listener in list(self.synced_listeners):
            listener([(key, stream, offset + len(data)) for key, stream, offset, data, _ in chunks])

    plant.setattr(output_hub.OutputHub, "append", append_and_tell)


def streams_are_not_told_apart(plant: pytest.MonkeyPatch) -> None:
    """The end of an older stream, or a command for it, is taken for the newer one's."""
    join = links.Links.join

    def join_as_one(self: Any, connection: Any) -> None:
        join(self, connection)
        connection.stream = 1

    plant.setattr(links.Links, "join", join_as_one)


def what_may_still_live_is_not_waited_for(plant: pytest.MonkeyPatch) -> None:
    """A node is given new work while something abandoned still runs on it."""
    miss = fit.node_miss

    def careless(node: Any, node_live: Any, limits: Any, at: Any) -> Any:
        return miss(node, replace(node_live, lingering=set()), limits, at)

    plant.setattr(fit, "node_miss", careless)


def a_request_is_not_remembered(plant: pytest.MonkeyPatch) -> None:
    """A submit that is sent again makes another job."""
    submit = jobs.on_jobs_submitted

    def forgetful(state: State, event: JobsSubmitted) -> Decision:
        return submit(state, replace(event, request_id=""))

    plant.setattr(jobs, "on_jobs_submitted", forgetful)


def a_refusal_is_not_told_again(plant: pytest.MonkeyPatch) -> None:
    """An agent that is asked again about what it refused says nothing, and its inventory leaves it out."""
    plant.setattr(duties.Duties, "_refuse", lambda self, key, reason, sentence: [])


def a_step_of_the_wall_clock_is_followed(plant: pytest.MonkeyPatch) -> None:
    """Whoever sets the clock of the scheduler's machine lets every span pass."""
    plant.setattr(clock.SlewedClock, "now", lambda self: Instant(max(self._now, self._wall_us())))


def a_cap_is_not_looked_at(plant: pytest.MonkeyPatch) -> None:
    """One user may have everything."""
    plant.setattr(caps.Caps, "refusal", lambda self, job: "")


def a_gang_starts_before_all_are_ready(plant: pytest.MonkeyPatch) -> None:
    """One rank that is prepared is taken for all of them."""
    ready = gangs.on_rank_ready

    def hasty(state: State, event: RankReady) -> Decision:
        found = live_attempt(state, event.node, event.key)
        if found is not None:
            all_ready = dict.fromkeys(rank_keys(*found), event.master_port)
            state = replace(state, live=replace(state.live, ready=all_ready))
        return ready(state, event)

    plant.setattr(gangs, "on_rank_ready", hasty)


def an_end_is_not_told(plant: pytest.MonkeyPatch) -> None:
    """A node does not report that a process has ended, and its job never ends."""
    changed = duties.Duties.changed

    def silent(self: Any, key: Any, change: Any) -> Any:
        return () if isinstance(change, AttemptEnd) else changed(self, key, change)

    plant.setattr(duties.Duties, "changed", silent)


def a_retry_is_not_counted(plant: pytest.MonkeyPatch) -> None:
    """A job that may be tried again is tried for ever, so that something always happens and nothing ends."""
    follows = attempts.what_follows

    def uncounted(*arguments: Any) -> Any:
        record = follows(*arguments)
        return replace(record, is_retry=False) if isinstance(record, AttemptEnded) else record

    plant.setattr(attempts, "what_follows", uncounted)


def what_was_told_is_forgotten(plant: pytest.MonkeyPatch) -> None:
    """A job that is warned of a device that is idle is warned again as soon as it is told of anything else."""
    plant.setattr(warnings, "is_told", lambda told, kind, about: any(each.kind is kind for each in told[-1:]))
    plant.setattr(invariants, "is_told", lambda *of: False)


def the_account_begins_where_the_scheduler_does(plant: pytest.MonkeyPatch) -> None:
    """What ended before a crash of the scheduler, and was not written, is not counted."""

    async def trust(self: Any, on_thread: Any) -> None:
        accounted = await on_thread(self._file.accounted)
        self._accounted = accounted or Accounted(0, Instant(0), self._store.lineage)
        self.is_complete.set()

    plant.setattr(Ledger, "_catch_up", trust)


def what_was_counted_is_counted_again(plant: pytest.MonkeyPatch) -> None:
    """After a start the records of before are counted beside what the file holds of them."""
    plant.setattr(HistoryFile, "accounted", lambda self: None)


def what_nodes_tell_of_lost_history_is_passed_over(plant: pytest.MonkeyPatch) -> None:
    """What ran and the store lacks is ended, and nobody says so."""
    plant.setattr(nodes, "found_by", lambda *of: Found())


def numbers_go_on_where_the_copy_ends(plant: pytest.MonkeyPatch) -> None:
    """A store that was put back gives numbers a second time."""
    plant.setattr(gaps, "_raised", lambda *of: [])


def a_refusal_permits_deletion(plant: pytest.MonkeyPatch) -> None:
    """A node deletes what a rank left as soon as the scheduler has said anything about it."""
    plant.setattr(leavings.ResultsAnswer, "permits_deletion", True)


def results_are_answered_before_they_are_on_record(plant: pytest.MonkeyPatch) -> None:
    """A node deletes what a rank left while the scheduler may still forget that it is stored."""

    async def say_nothing(*of: Any) -> None:
        pass

    plant.setattr(results, "_tell", say_nothing)


def an_end_does_not_carry_its_start(plant: pytest.MonkeyPatch) -> None:
    """A job whose start was lost with its agent succeeds and never ran."""
    plant.setattr(attempts, "start_by_end", lambda at, job, key, started_ago: (job, ()))


def the_next_attempt_does_not_wait_for_what_was_kept(plant: pytest.MonkeyPatch) -> None:
    """A job is placed again before what its last attempt keeps is stored."""
    plant.setattr(decide, "with_kept_waits", lambda state, decision: decision)


def an_older_copy_takes_the_place_of_a_newer_one(plant: pytest.MonkeyPatch) -> None:
    """What comes late of an earlier attempt counts as the newest."""
    plant.setattr(KeptCopy, "is_newer_than", lambda copy, other: True)


def an_attempt_finds_nothing_of_what_was_kept(plant: pytest.MonkeyPatch) -> None:
    """A launch does not say what its rank is to find."""
    plant.setattr(gangs, "_kept_for", lambda attempt, rank: None)


BUGS: dict[Plant, int] = {
    the_fence_is_ignored: 75,
    nobody_waits_for_the_fence: 0,
    commands_leave_before_the_commit: 0,
    replies_leave_before_the_commit: 0,
    a_launch_is_not_idempotent: 0,
    a_stop_frees_the_devices: 0,
    an_end_counts_before_its_output_is_stored: 0,
    output_is_acknowledged_before_it_is_synced: 19,
    streams_are_not_told_apart: 6,
    what_may_still_live_is_not_waited_for: 5,
    a_request_is_not_remembered: 0,
    a_refusal_is_not_told_again: 5,
    a_step_of_the_wall_clock_is_followed: 2,
    a_cap_is_not_looked_at: 2,
    a_gang_starts_before_all_are_ready: 0,
    an_end_is_not_told: 0,
    a_retry_is_not_counted: 12,
    what_was_told_is_forgotten: 13,
    the_account_begins_where_the_scheduler_does: 1,
    what_was_counted_is_counted_again: 0,
    what_nodes_tell_of_lost_history_is_passed_over: 11,
    numbers_go_on_where_the_copy_ends: 5,
    a_refusal_permits_deletion: 0,
    results_are_answered_before_they_are_on_record: 14,
    an_end_does_not_carry_its_start: 6,
    the_next_attempt_does_not_wait_for_what_was_kept: 0,
    an_older_copy_takes_the_place_of_a_newer_one: 15,
    an_attempt_finds_nothing_of_what_was_kept: 0,
}
"""Each with the seed from which on it is looked for: the first that met it when this was written, which saves time."""
