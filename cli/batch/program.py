"""Runs rows through a model into a file of answers, and tells how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpufleet.client import InferenceClient
from gpufleet.client.settings import GivenSettings

from ..asking.reaching import check_served
from ..errors import FAILED
from .answers import AnswerFile
from .done_rows import DoneRows
from .given import own_job
from .rows import InputRow, check_source, check_unchanged, count_of, rows_of

LINE_EVERY_S = 30.0


def run_batch(source: Path, to: Path, given: GivenSettings, *, as_they_come: bool) -> int:
    """Answer every row that has no answer yet; gives the exit code: 1 where a row of the file has an error."""
    check_source(source, to)
    with InferenceClient(**given) as client, AnswerFile(to, time.monotonic()) as answers:
        check_unchanged(source, to, answers.done)
        before = answers.done.count
        try:
            with _progress(source, answers.done) as tell:
                _answer_all(client, source, answers, tell, as_they_come=as_they_come)
        except BaseException:
            _say(f"stopped: {_counted(answers.done, before)}; the same command goes on where it was")
            raise
    # Said when the file lies on the disk.
    _say(f"{to}: {_counted(answers.done, before)}")
    return FAILED if answers.done.failed else 0


def _answer_all(
    client: InferenceClient, source: Path, answers: AnswerFile, tell: Callable[[], None], *, as_they_come: bool
) -> None:
    asked: dict[int, InputRow] = {}

    def items() -> Iterator[Any]:
        for number, row in enumerate(rows_of(source, answers.done.__contains__)):
            asked[number] = replace(row, item=None)
            yield row.item

    for result in client.stream(items(), in_order=not as_they_come):
        check_served(result, "The same command goes on where it was, once it is served again.")
        answers.add(asked.pop(result.index), result, time.monotonic())
        tell()


def _counted(done: DoneRows, before: int) -> str:
    words = f"{done.answered:,} answered, {done.failed:,} failed"
    return f"{words}, {before:,} of them before" if before else words


def _say(text: str) -> None:
    print(f"gpuctl: {text}", file=sys.stderr, flush=True)


def _is_terminal() -> bool:
    return sys.stderr.isatty()


def _lines_of_a_job(source: Path, done: DoneRows) -> Callable[[], None]:
    """For gpuctl logs: how far it is, at once and then every LINE_EVERY_S."""
    total, begun_s, before = count_of(source), time.monotonic(), done.count
    said_s = float("-inf")

    def tell() -> None:
        nonlocal said_s
        now_s = time.monotonic()
        if now_s - said_s >= LINE_EVERY_S:
            said_s = now_s
            rate = (done.count - before) / max(1e-3, now_s - begun_s)
            _say(f"{done.count:,} of {total:,}, {done.failed:,} failed, {rate:,.1f}/s")

    return tell


@contextmanager
def _progress(source: Path, done: DoneRows) -> Iterator[Callable[[], None]]:
    """A bar with rate and end on a terminal, a line now and then in a job, nothing elsewhere."""
    if not _is_terminal():
        yield _lines_of_a_job(source, done) if own_job() else lambda: None
        return
    from rich.console import Console  # which nothing else needs
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=count_of(source), completed=done.count, rate="")
        begun_s, before = time.monotonic(), done.count

        def tell() -> None:
            rate = (done.count - before) / max(1e-3, time.monotonic() - begun_s)
            bar.update(task, completed=done.count, rate=f"{rate:,.1f}/s")

        yield tell
