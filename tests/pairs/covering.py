"""Chooses rows in which every allowed combination of so many levels comes at least once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict
from itertools import combinations, product

from covertable import make

from tests.pairs.combinations import FORBIDDEN, Levels
from tests.pairs.features import FEATURES, Row, row_of


def covering_rows(seed: int, *, strength: int = 2, only: Collection[str] = ()) -> list[Row]:
    """The rows of a seed; with `only` all features but these are plain."""
    factors = {name: list(levels) for name, levels in FEATURES.items() if not only or name in only}
    plain = {name: levels[0] for name, levels in FEATURES.items()}
    constraints = [
        _not_all({name: level for name, level in each.items() if name in factors})
        for each in FORBIDDEN
        if all(name in factors or plain[name] == level for name, level in each.items())
    ]
    rows = make(factors, strength=min(strength, len(factors)), salt=str(seed), constraints=constraints)
    return [row_of(dict(each)) for each in rows]


def _not_all(levels: Levels) -> dict[str, object]:
    equal = [{"operator": "eq", "left": name, "value": level} for name, level in levels.items()]
    return {"operator": "not", "condition": {"operator": "and", "conditions": equal}}


def covered(row: Row, strength: int) -> Iterator[tuple[tuple[str, str], ...]]:
    """Each combination of so many levels that comes in a row."""
    yield from combinations(sorted(asdict(row).items()), strength)


def wanted(strength: int, among: Collection[str] = tuple(FEATURES)) -> Iterator[tuple[tuple[str, str], ...]]:
    """Each combination of so many levels that at least one allowed row has, among these features."""
    for names in combinations(sorted(among), strength):
        for chosen in product(*(FEATURES[name] for name in names)):
            levels = dict(zip(names, chosen, strict=True))
            if is_possible(levels):
                yield tuple(levels.items())


def is_possible(levels: Levels) -> bool:
    """Whether an allowed row has these levels: the features that are left are chosen one by one."""
    broken = next((each for each in FORBIDDEN if each.items() <= _filled(levels).items()), None)
    if broken is None:
        return True
    free = [name for name in broken if name not in levels]
    return any(is_possible({**levels, name: level}) for name in free for level in FEATURES[name][1:])


def _filled(levels: Levels) -> dict[str, str]:
    """All features: those that are not said are plain."""
    return {name: levels.get(name, plain) for name, (plain, *_) in FEATURES.items()}
