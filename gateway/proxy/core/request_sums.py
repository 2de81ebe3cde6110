"""What ended requests come to, by user and program, until the scheduler has stored it: each is told, and told once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .token_counts import Tokens

ROWS_MAX = 1_000
"""Rows of a batch."""

KEYS_MAX = 10_000
"""Pairs of a user and a program that wait to be told while the scheduler is away. Further ones count for nobody."""

TOKENS_SUM_MAX = 10**12
"""The scheduler takes no larger sum. Tokens beyond it are not known: a program says what it likes, and other people's
requests are told in the same batch."""

FAILED_FROM = 400
"""A status from which on a request has failed."""

Key = tuple[str, str]


@dataclass(slots=True)
class Sums:
    """What the requests of a user to a program come to; `unknown` of them did not fail, and said no tokens.

    `fallbacks` are none of them: they preferred this program, and went to its CPU model.
    """

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unknown: int = 0
    duration_s: float = 0.0
    fallbacks: int = 0

    def has_room_for(self, tokens: Tokens) -> bool:
        """Whether the sums stay what the scheduler takes."""
        most = max(self.prompt_tokens + tokens.prompt, self.completion_tokens + tokens.completion)
        return most <= TOKENS_SUM_MAX


class EndedRequest(NamedTuple):
    """A request that a replica had. `status` is that of its answer, 0 where the replica gave none.

    `is_broken`: the replica ended before its answer was whole. `says_tokens`: it is one whose answer says its tokens.
    """

    duration_s: float
    status: int
    is_broken: bool = False
    says_tokens: bool = False
    tokens: Tokens | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the program, and not the client, is why there was no good answer."""
        return self.is_broken or self.status >= FAILED_FROM


@dataclass(frozen=True, slots=True)
class Batch:
    """What is told at a time, again and again under the same number until it is stored."""

    sequence: int
    rows: tuple[tuple[Key, Sums], ...]


class RequestSums:
    """The requests of one start of a gateway. A key is a model and a user, empty for one who is not known."""

    def __init__(self) -> None:
        self._sums: dict[Key, Sums] = {}
        self._told: Batch | None = None
        self._sequence = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self._sums and self._told is None

    def add(self, model: str, user: str, request: EndedRequest) -> bool:
        """Count a request. False where there is no room for its user, and it counts for nobody."""
        sums, has_room = self._of(model, user)
        sums.requests += 1
        sums.duration_s += request.duration_s
        tokens = request.tokens
        if tokens is not None and sums.has_room_for(tokens):
            sums.prompt_tokens += tokens.prompt
            sums.completion_tokens += tokens.completion
        else:
            tokens = None
        if request.has_failed:
            sums.failed += 1
        elif request.says_tokens and tokens is None:
            sums.unknown += 1
        return has_room

    def fell_back(self, model: str, user: str) -> bool:
        """Count a request that goes to a program's CPU model in its place. False as above."""
        sums, has_room = self._of(model, user)
        sums.fallbacks += 1
        return has_room

    def _of(self, model: str, user: str) -> tuple[Sums, bool]:
        key = model, user
        has_room = key in self._sums or len(self._sums) < KEYS_MAX
        return self._sums.setdefault(key if has_room else (model, ""), Sums()), has_room

    def batch(self) -> Batch | None:
        """What is to be told now: the batch that is not stored yet, or the next one; None where there is none."""
        if self._told is None and self._sums:
            keys = list(self._sums)[:ROWS_MAX]
            self._sequence += 1
            self._told = Batch(self._sequence, tuple((key, self._sums.pop(key)) for key in keys))
        return self._told

    def stored(self, batch: Batch) -> None:
        """A batch is stored, or refused for good."""
        if self._told is batch:
            self._told = None
