"""Writes docs/options.md: what each option of `submit` means where features meet.

python -m tests.pairs.options_table
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.pairs.combinations import REFUSED
from tests.pairs.features import FEATURES
from tests.pairs.meanings import MEANINGS, Meaning

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"

HEAD = """# Options, together

What each option of `gpuctl submit` means for the items of an [array](arrays.md), for a job on several nodes
(`--nodes`), for later attempts of a job (`--retries`, `--requeue-on-timeout`, a lost node, a preemption) and for a job
in a [container](containers.md) (`--image`). *Refused*: `submit` and `--dry-run` name the option and submit nothing.

`make pairs` tries the options with a ✓ in every pair ([drills.md](drills.md#every-pair-of-features)). This page is made
of its tables, by `python -m tests.pairs.options_table`.

| option | array | several nodes | later attempts | container | |
|---|---|---|---|---|---|
"""

REFUSED_CELL = "refused"


def page() -> str:
    """The page as it must be."""
    return HEAD + "".join(f"{_row(option, meaning)}\n" for option, meaning in MEANINGS.items())


def _row(option: str, meaning: Meaning) -> str:
    columns = {"array": meaning.arrays, "nodes": meaning.nodes, "": meaning.attempts, "image": meaning.containers}
    cells = [_cell(meaning.feature, column, said) for column, said in columns.items()]
    return f"| {' | '.join([f'`{option}`', *cells, '✓' if meaning.feature else ''])} |".replace("|  |", "| |")


def _cell(feature: str, column: str, said: str) -> str:
    """What is said, or that the option is refused there; one of the two."""
    is_refused = bool(column and feature) and any(
        {column: FEATURES[column][1], name: level}.items() == each.levels.items()
        for name, level in _levels(feature)
        for each in REFUSED
    )
    assert is_refused != bool(said), f"{feature} and {column}: combinations.py and meanings.py disagree"
    return REFUSED_CELL if is_refused else said


def _levels(feature: str) -> Iterator[tuple[str, str]]:
    name, _, level = feature.partition("=")
    yield from ((name, each) for each in ([level] if level else FEATURES[name][1:]))


if __name__ == "__main__":
    PAGE.write_text(page())
