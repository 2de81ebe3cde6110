"""How the files of a job came to its nodes, for people: by which way each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpufleet.v1 import job_pb2

WAYS: dict[int, str] = {
    job_pb2.FILE_WAY_WIRE: "from the scheduler",
    job_pb2.FILE_WAY_CACHE: "kept on the node",
    job_pb2.FILE_WAY_SHARED_ROOT: "read in the shared folder",
}
NAMES_SHOWN = 4
NODES_SHOWN = 4


def ways_in_words(job: job_pb2.Job) -> str:
    """Of the newest attempt: `read in the shared folder: a.csv, b.csv; from the scheduler: c`; empty where unknown."""
    ranks = job.attempts[-1].ranks if job.attempts else ()
    told = [(rank.node, _of_rank(job.spec.files, rank.file_runs)) for rank in ranks if rank.file_runs]
    if len({text for _, text in told}) <= 1:
        return told[0][1] if told else ""
    more = f" · and on {len(told) - NODES_SHOWN} more nodes" if len(told) > NODES_SHOWN else ""
    return " · ".join(f"{node}: {text}" for node, text in told[:NODES_SHOWN]) + more


def _of_rank(files: Sequence[job_pb2.InputFile], runs: Sequence[job_pb2.FileRun]) -> str:
    names: dict[int, list[str]] = {}
    for way, name in zip(_ways(runs), (each.path for each in files), strict=False):
        names.setdefault(way, []).append(name)
    return "; ".join(f"{WAYS.get(way, 'in another way')}: {_some(of_way)}" for way, of_way in names.items())


def _ways(runs: Sequence[job_pb2.FileRun]) -> Iterator[int]:
    for run in runs:
        for _ in range(run.count):
            yield run.way


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
