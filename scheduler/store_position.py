"""The position of the store, sealed: nodes keep the newest one, for a scheduler whose folder was put back, too.

The data folder remembers how far its store had come (known_store.py), but a copy of the whole machine puts back both.
So each node is told the same, with each Register and now and then on its stream, signed by the key in the data folder,
and gives it back when it registers. What has a wrong seal counts for nothing: nobody but a scheduler with this key can
say how far it was (docs/design/lineages.md).
"""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.telemetry.logs import fields

from .known_store import KnownStore, Memory, jobs_above, sessions_above
from .position_seal import PositionSeal
from .state.durable import Durable
from .state.ids import JobId, NodeName

log = logging.getLogger(__name__)


def sealed(seal: PositionSeal, known: KnownStore) -> str:
    """A position as nodes are told it."""
    return seal.text(json.dumps(asdict(known), separators=(",", ":")).encode())


def opened(seal: PositionSeal, text: str) -> KnownStore | None:
    """The position that was sealed so; None for what nobody with this key has sealed."""
    packed = seal.read(text)
    try:
        return None if packed is None else KnownStore(**json.loads(packed))
    except (ValueError, TypeError):
        return None  # of a newer version


class StorePositions:
    """Tells nodes how far the store is, and judges what they were told before.

    `newest` is how far it is now, None while that must not be told. `raise_numbers` lets numbers of jobs and sessions
    go on above these.
    """

    def __init__(
        self,
        seal: PositionSeal,
        memory: Memory,
        newest: Callable[[], KnownStore | None],
        durable: Durable,
        raise_numbers: Callable[[JobId, int], None],
    ) -> None:
        self._seal = seal
        self._memory = memory
        self._newest = newest
        self._durable = durable
        self._raise_numbers = raise_numbers
        self._told: tuple[KnownStore | None, str] = None, ""

    def text(self) -> str:
        """The position to tell now; empty for none."""
        newest = self._newest()
        if newest != self._told[0]:
            self._told = newest, "" if newest is None else sealed(self._seal, newest)
        return self._told[1]

    @property
    def store_id(self) -> str:
        """Which store it is."""
        newest = self._newest()
        return "" if newest is None else newest.store_id

    def check_term(self, node: NodeName, store_id: str, highest_term: int) -> None:
        """Refuse a node that would not obey this scheduler, so that it is known here, too. Nothing else follows.

        Errors: STORE_RESTORED.
        """
        newest = self._newest()
        if newest is None or store_id != newest.store_id or highest_term <= newest.term:
            return
        said = f"node {node!r} has heard a scheduler of this store in term {highest_term:,}, and this is term"
        log.error(
            "a node obeys only a newer scheduler: was the database put back? Start it once with --accept-restored",
            extra=fields(node=node, heard_term=highest_term, term=newest.term),
        )
        raise invalid("highest_term", f"{said} {newest.term:,}", reason=Reason.STORE_RESTORED)

    def judge(self, node: NodeName, text: str) -> None:
        """See whether what a node was told is in this store. Of history that a person gave up only numbers count.

        Errors: STORE_RESTORED, after which this scheduler decides nothing any more.
        """
        told = opened(self._seal, text)
        if told is None:
            if text:
                log.info("what a node was told of a store is not sealed with this key", extra=fields(node=node))
            return
        newest = self._newest()
        if newest is None or self._memory.has(told, newest):
            return
        is_another = told.store_id != newest.store_id
        if is_another:
            log.warning(
                "a node was told of another store: is this the scheduler that it belongs to?",
                extra=fields(node=node, store=told.store_id, jobs_up_to=told.next_job - 1, term=told.term),
            )
        gap = self._durable.gap
        if gap is not None and told.term < gap.term:
            self._take_up_numbers(node, told)
            return
        if is_another:
            return
        problem = self._memory.contradict(told, newest)
        log.critical("a node knows a newer store", extra=fields(node=node, why=problem.message))
        raise GpufleetError(problem.reason, problem.message, next_step=problem.next_step)

    def _take_up_numbers(self, node: NodeName, told: KnownStore) -> None:
        """Who accepted that history was lost did not know of all of it."""
        counters = self._durable.counters
        if told.next_job <= counters.next_job and told.next_session <= counters.next_session:
            return
        above, sessions = jobs_above(told, 0), sessions_above(told, 0)
        log.warning(
            "a node knows higher numbers of the history that was given up: a number may mean two jobs",
            extra=fields(node=node, jobs_up_to=told.next_job - 1, jobs_go_on_above=above),
        )
        self._raise_numbers(above, sessions)
