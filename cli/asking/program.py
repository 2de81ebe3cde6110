"""Asks about items, and prints each answer as it comes, in their order."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from gpufleet.client import InferenceClient, Result
from gpufleet.client.settings import GivenSettings

from .. import screen
from ..batch.lines import answer_object, as_json
from ..errors import FAILED
from ..printing import print_object
from .items import NamedItem
from .reaching import check_reachable, check_served


def run_infer(items: Iterable[NamedItem], given: GivenSettings, form: str) -> int:
    """Print the answers; gives the exit code: 1 where an item has an error. Raises where nobody can be asked at all."""
    failed = 0
    whole: list[dict[str, Any]] = []
    with InferenceClient(**given) as client:
        check_reachable(client.settings)
        names: dict[int, str] = {}

        def asked() -> Iterator[Any]:
            for number, each in enumerate(items):
                names[number] = each.name
                yield each.item

        for result in client.stream(asked()):
            check_served(result, "Ask again, once it is served again.")
            name = names.pop(result.index)
            failed += not result.is_ok
            match form:
                case "json":
                    whole.append(answer_object(result, result.index, name))
                case "jsonl":
                    _print(as_json(answer_object(result, result.index, name)))
                case "name":
                    _print(name)
                case _:
                    _print_for_people(result, name, is_wide=form == "wide")
    if form == "json":
        print_object(json.loads(as_json(whole)), "json")
    return FAILED if failed else 0


def _print_for_people(result: Result, name: str, *, is_wide: bool) -> None:
    if result.error is not None:
        screen.say(f"{_clean(name)}: {result.error}")
        return
    said = json.loads(as_json(result.value))  # bytes, arrays and numbers that are not finite as JSON has them
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    _print(f"{_clean(name)}\t{result.backend or ''}\t{_clean(text)}" if is_wide else _clean(text))


def _clean(text: str) -> str:
    """On one line, and without what would steer a terminal: as JSON writes it, where it holds any of that."""
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def _print(line: str) -> None:
    sys.stdout.buffer.write(line.encode(errors="backslashreplace") + b"\n")
    sys.stdout.buffer.flush()
