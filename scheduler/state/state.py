"""The whole state: what survives a restart beside what does not."""

from dataclasses import dataclass, field

from .durable import Durable
from .limits import Limits
from .live import Live


@dataclass(slots=True)
class State:
    """What the core decides on. `durable` changes by `apply(record)`, `live` by `observe` and `follow`.

    `lineage` names this start of the scheduler, and what it places (RankKey).
    """

    durable: Durable = field(default_factory=Durable)
    live: Live = field(default_factory=Live)
    limits: Limits = Limits()
    lineage: str = ""
