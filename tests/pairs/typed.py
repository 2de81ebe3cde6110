"""What a person types for a row: the words behind `gpuctl`, and the line as a shell takes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.pairs.features import Row

JOB = Path(__file__).with_name("job.sh")
VARIABLE, SECRET, INPUT = "of mine", "hidden", "typed"
FOLDER, FILE, SETUP, PACKAGE = "sent along", "one file", "made", "packed"
"""What the job is given by each way, and says that it has."""

GROUP = "pairs"
SETUP_LINE = f'echo {SETUP} > "$VIRTUAL_ENV/words"'
LIMIT_SECONDS, LIMIT_SECONDS_OF_ACTS = 5, 40
"""The time limit that a row runs into; longer where something is done with the job before."""


@dataclass(slots=True, kw_only=True)
class Places:
    """What a row's line names that another run of the same row names otherwise."""

    number: int
    before: str = "ID"
    """The job that ended before."""
    url: str = "URL"
    """Where notices are posted."""
    port: int = 8000
    """Where the job listens."""
    outputs: Path = Path("OUTPUTS")
    """Where nodes write output files and notices."""

    @property
    def name(self) -> str:
        return f"pair-{self.number}"

    @property
    def notices(self) -> Path:
        """What the commands of --notify append to."""
        return self.outputs / f"{self.name}.notices"

    @property
    def label(self) -> str:
        return f"row={self.number}"

    def newest_name(self, row: Row) -> str:
        """Its name once gpuctl update has changed it."""
        return f"{self.name}-renamed" if row.update == "name" else self.name


def acts(row: Row) -> bool:
    """Whether something is done with the job while it runs."""
    return row.executes == "yes" or row.forward == "yes" or row.update != "no"


def stays(row: Row) -> bool:
    """Whether the first attempt runs until it is told to go on, or ended."""
    return row.event != "nothing" or acts(row)


def limit_seconds(row: Row) -> int | None:
    """The time limit that is typed."""
    if row.event == "time limit":
        return LIMIT_SECONDS_OF_ACTS if acts(row) else LIMIT_SECONDS
    return 3_600 if row.limit != "none" or row.on_timeout == "requeued" else None


def options(row: Row, at: Places) -> Iterator[str]:
    """The options of a row."""
    nodes = 2 if row.nodes == "two" else 1
    yield from ("--name", at.name)
    if row.gpus != "none":
        yield from ("--gpus", str(nodes))
    if row.gpus == "share":
        yield from ("--gpu-share", "0.5")
    if row.nodes == "two":
        yield from ("--nodes", "2")
    if row.array == "yes":
        yield from ("--array", "1-2")
    yield from _files(row)
    if row.retries == "yes":
        yield from ("--retries", "1")
    if (limit := limit_seconds(row)) is not None:
        yield from ("--time-limit", f"{limit}s")
    if row.on_timeout == "requeued":
        yield "--requeue-on-timeout"
    if row.after != "nothing":
        yield from ("--after", f"{at.before}:{row.after}")
    if row.gpu_mode != "none":
        yield from ("--gpu-mode", row.gpu_mode)
    if row.secret == "yes":
        yield from ("--secret", "pairs=PAIRS_SECRET")
    if row.variable == "yes":
        yield from ("--env", f"PAIRS_VARIABLE={VARIABLE}")
    if row.output_file == "yes":
        yield from ("--output-file", str(at.outputs / "%x-%j-%t.log"))
    if row.notify == "command":
        yield from ("--notify", f'echo "$GPUFLEET_JOB_ID $GPUFLEET_ATTEMPT $GPUFLEET_NOTICE" >> {at.notices}')
    if row.notify == "URL":
        yield from ("--notify", at.url)
    if row.waits_by == "label":
        yield from ("--label", at.label)
    if row.hold == "yes":
        yield "--hold"
    if row.process == "nice":
        yield from ("--nice", "19")
    if row.process == "rlimit":
        yield from ("--rlimit", "NOFILE=4000")
    if row.group == "yes":
        yield from ("--group", GROUP)
    if row.band == "high":
        yield from ("--band", "high")
    if row.preemptible == "yes":
        yield "--preemptible"


def _files(row: Row) -> Iterator[str]:
    if row.upload == "yes":
        yield from ("--upload", ".")
    if row.file == "yes":
        yield from ("--file", "lies/more.txt=more.txt")
        if row.environment == "requirements" and row.upload == "no":
            yield from ("--file", "requirements.txt", "--file", "wheels")
    if row.environment == "requirements":
        yield from ("--requirements", "requirements.txt")
    if row.environment == "setup":
        yield from ("--setup", SETUP_LINE)
    if row.image == "yes":
        yield from ("--image", "localhost/busybox:1")
    if row.download == "yes":
        yield from ("--download", "out/**")
    if row.image == "no" and "yes" not in (row.upload, row.file, row.download):
        yield from ("--cwd", "/")  # where jobs are isolated they do not see the folder of the one who types


def job_words(row: Row, at: Places) -> Iterator[str]:
    """What the job is told to do."""
    if row.download == "yes":
        yield "leaves"
    if row.typed in ("run -i", "shell"):
        yield "reads"
    if row.forward == "yes":
        yield f"listens={at.port}"
    if stays(row):
        yield "stays"
    if row.ends != "well":
        yield {"badly": "badly", "badly once": "once"}[row.ends]


def words(row: Row, at: Places) -> list[str]:
    """The words behind `gpuctl`."""
    return [*row.typed.split(), *options(row, at), "--", "sh", "-c", JOB.read_text(), "job", *job_words(row, at)]


def line(row: Row, at: Places) -> str:
    """The line that a person types for it, in a folder with the files of the row."""
    said: Sequence[str] = [*row.typed.split(), *options(row, at)]
    program = '"$(cat tests/pairs/job.sh)"'
    return f"gpuctl {shlex.join(said)} -- sh -c {program} {shlex.join(['job', *job_words(row, at)])}"
