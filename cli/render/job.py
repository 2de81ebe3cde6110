"""One job: its record, its story, why it waits, and what a submit asks for, as `--dry-run` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.fleet.outcome import end_in_words, has_ended
from gpufleet.fleet.submitting.job_spec import PASSED_ON, command_line_of, hidden_when_repeated, options_of, shell_line
from gpufleet.fleet.submitting.option_kinds import gpu_mode_word, resource_limit_text, secret_text, signal_name
from gpufleet.text.cleaning import clean
from gpufleet.text.units import counted, format_size

from . import words
from .file_ways import ways_in_words
from .jobs import counts_in_words, end_of, gpu_count, item_lines, name_of, ran, request_in_words
from .results import kept_in_words, results_in_words
from .table import Cell, Colour, Column, Look, draw, painted, wrapped

VERDICT_COLUMNS: Sequence[Column[job_pb2.NodeVerdict]] = (
    Column("NODE", lambda each: each.node),
    Column("FITS", lambda each: Cell("yes", Colour.GOOD) if each.fits else Cell("no")),
    Column("WHY", lambda each: each.sentence or each.reason, least=20, wraps=True, goes_below=True),
)
STOPPED_IN_WORDS = {
    "GANG": "(stopped, as another rank had failed)",
    "CANCELLED": "(cancelled)",
    "TIME_LIMIT": "(time limit)",
    "PREEMPTED": "(preempted)",
    "REQUEUED": "(requeued)",
    "FENCED": "(its node was cut off)",
}
METHODS = {
    "score": "the best by score",
    "pinned": "those that were named",
    "fragmentation": "the fullest that had room",
    "fallback": "in plain order, not by their readings",
}
SCORES_SHOWN = 8
FILES_SHOWN = 4
RANKS_SHOWN = 32
"""Ranks of a gang shown one by one; those that did not end well come first where there are more."""


def job_screen(job: job_pb2.Job, now: datetime, look: Look, items: Sequence[scheduler_pb2.ArrayItem] = ()) -> list[str]:
    """The whole screen of `gpuctl job ID`; of an array with these items."""
    facts = [(label, clean(text)) for label, text in _facts(job, now) if text]
    kind = "Array" if job.HasField("array_counts") else "Job"
    lines = [f"{kind} {job.id} · {clean(name_of(job))} · {_state(job, look)}"]
    for label, text in facts:
        first, *rest = wrapped(text, look.width - 13) if look.width else [text]
        lines += [f"  {label:<10} {first}", *(f"{'':<13}{piece}" for piece in rest)]
    if job.attempts:
        lines += ["", *draw(_attempt_columns(now), job.attempts, look)]
        if words.runs_of(job) > len(job.attempts):
            lines.append(f"({words.runs_of(job) - len(job.attempts)} earlier attempts are in: gpuctl story {job.id})")
        lines += _ranks_in_lines(job, now, look)
        lines += _warnings_in_lines(job, now, look)
    if job.HasField("array_counts"):
        lines += ["", *_items_in_lines(job, items, now, look)]
    if job.spec.serves:
        model = job.spec.serves
        revision = f", revision {job.model_revision}" if job.model_revision else ""
        return [
            *lines,
            "",
            f"A worker of model {model}{revision}: gpuctl models · to end the model: gpuctl serve {model} --stop",
        ]
    again = job_pb2.JobSpec()
    again.CopyFrom(job.spec)
    if job.array_id:
        again.array.indices = str(job.array_index)
    hidden = hidden_when_repeated(again)
    if hidden:
        whose = f"Only {clean(job.user)} and admins see {' and '.join(hidden)} of it"
        return [*lines, "", f"{whose}, so that nobody else can submit it again as it was."]
    lines += ["", "Submit it again with:", f"  {clean(command_line_of(again))}"]
    if job.array_counts.failed or job.array_counts.timed_out:
        lines += ["or what failed of it with:", f"  gpuctl submit --rerun-failed {job.id}"]
    return lines


def _items_in_lines(job: job_pb2.Job, items: Sequence[scheduler_pb2.ArrayItem], now: datetime, look: Look) -> list[str]:
    counts = job.array_counts
    total = counts.running + counts.starting + counts.stopping + counts.failed + counts.timed_out
    lines = item_lines(items, now, look) if items else []
    if total > len(items):
        lines.append(f"… and {counted(total - len(items), 'more item')} that ran or failed")
    indices = job.spec.array.indices.partition(",")[0].partition("-")[0]
    return [*lines, f"One item: gpuctl job {job.id}.{indices} · the output of all: gpuctl logs {job.id}"]


def story_screen(lines: Sequence[job_pb2.StoryLine], now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl story ID`."""
    columns: list[Column[job_pb2.StoryLine]] = [
        Column("TIME", lambda line: words.full_clock(line.time, now)),
        Column("WHAT", lambda line: line.kind),
        Column("IN WORDS", lambda line: line.sentence, least=20, wraps=True),
    ]
    return draw(columns, lines, look)


def explain_screen(answer: scheduler_pb2.ExplainResponse, now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl explain ID`: the sentence, node by node, who is ahead, when, and what would help."""
    job, explanation = answer.job, answer.explanation
    sentence = explanation.reason.sentence or _no_wait(job)
    kind = "array" if job.HasField("array_counts") else "job"
    lines = [clean(f"{kind.capitalize()} {job.id}: {sentence.removeprefix(f'{kind} {job.id} ')}")]
    if explanation.nodes:
        lines += ["", *draw(VERDICT_COLUMNS, explanation.nodes, look), ""]
    lines += _ahead(explanation)
    return lines + when(explanation, now)


def _no_wait(job: job_pb2.Job) -> str:
    if has_ended(job):
        return f"{end_in_words(job).partition(' ')[2].partition(' ')[2]}; it waits for nothing"
    return f"{words.job_state(job.state).text}; it waits for nothing"


def _ahead(explanation: job_pb2.Explanation) -> list[str]:
    if not explanation.ahead_count:
        return []
    named = ", ".join(map(str, explanation.ahead_job_ids))
    more = explanation.ahead_count - len(explanation.ahead_job_ids)
    named += f" and {more} more" if more > 0 else ""
    return [f"Ahead of it: {counted(explanation.ahead_count, 'job')} ({named})"]


def when(explanation: job_pb2.Explanation, now: datetime) -> list[str]:
    """When a job starts, as expected and at the latest, or why nobody can say, and what would start it now."""
    lines = []
    if explanation.HasField("estimated_start_time"):
        lines.append(f"Estimated start: {words.clock(explanation.estimated_start_time, now)}")
    if explanation.HasField("likely_latest_start_time"):
        likely = words.likely(explanation.likely_earliest_start_time, explanation.likely_latest_start_time, now)
        lines.append(f"Likely start: {likely}")
    if explanation.estimate_sentence:
        lines.append(clean(explanation.estimate_sentence[:1].upper() + explanation.estimate_sentence[1:]))
    if explanation.HasField("latest_start_time"):
        lines.append(f"At the latest: {words.clock(explanation.latest_start_time, now)}, as jobs and nodes are now")
    if explanation.bound_sentence:
        lines.append(clean(explanation.bound_sentence[:1].upper() + explanation.bound_sentence[1:]))
    if explanation.nearest_change:
        lines.append(clean(f"Would start it now: {explanation.nearest_change}"))
    return lines


def _state(job: job_pb2.Job, look: Look) -> str:
    cell = words.job_state(job.state)
    return painted(cell.text, cell.colour, look)


def _facts(job: job_pb2.Job, now: datetime) -> Iterable[tuple[str, str]]:
    spec = job.spec
    yield "user", job.user
    yield "asked for", _request(spec, group_is_removed=job.group_is_removed)
    yield "GPUs are", _gpu_choice(job, now)
    if job.HasField("array_counts"):
        yield "array", request_in_words(spec.array, job.array_counts)
        yield "items", counts_in_words(job.array_counts)
    if job.array_id:
        yield "array", f"item {job.array_index} of array {job.array_id}"
    yield "folder", spec.cwd
    yield "from", spec.submit_cwd if spec.submit_cwd != spec.cwd else ""
    yield "files", _files(spec)
    yield "uploaded", _folder(spec)
    yield "they came", ways_in_words(job)
    yield "secrets", ", ".join(secret_text(each, spec.secrets[each]) for each in sorted(spec.secrets))
    yield "copy", _copied(spec)
    yield "at limit", _at_limit(spec)
    yield "process", _process(spec.process)
    yield "labels", words.labels(spec.labels)
    yield "submitted", words.full_clock(job.submit_time, now)
    if job.HasField("start_time"):
        yield "started", words.full_clock(job.start_time, now)
    yield "setting up", job.setting_up
    yield "blocked", f"its output: {job.output_blocked}" if job.output_blocked else ""
    if job.HasField("end_time"):
        yield "ended", words.full_clock(job.end_time, now)
    yield "why", job.wait_reason.sentence
    if spec.HasField("queue_timeout") and job.state in (job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_HELD):
        rests = "; this rests while it is held" if job.state == job_pb2.JOB_STATE_HELD else ""
        yield "gives up", f"after {words.span(spec.queue_timeout)} in the queue{rests}"
    if job.queue_position:
        yield "place", f"{job.queue_position} in the queue"
    if job.HasField("estimated_start_time"):
        yield "estimate", f"starts at {words.clock(job.estimated_start_time, now)}"
    if job.HasField("likely_latest_start_time"):
        yield "likely", words.likely(job.likely_earliest_start_time, job.likely_latest_start_time, now)
    yield "estimate", job.estimate_sentence.removeprefix("no estimate: ")
    if job.HasField("latest_start_time"):
        yield "at latest", f"starts by {words.clock(job.latest_start_time, now)}, as jobs and nodes are now"
    yield "bound", job.bound_sentence
    if job.attempts and job.attempts[-1].HasField("gpu_info"):
        yield "GPUs", _chosen(job.attempts[-1].gpu_info)
    if has_ended(job):
        yield "end", _ending(job)
    yield "results", results_in_words(job)
    yield "kept", kept_in_words(job)
    if job.has_stats:
        yield "used", f"see: gpuctl stats {job.id}"
    if job.requeue_count:
        yield "requeued", counted(job.requeue_count, "time")


def _gpu_choice(job: job_pb2.Job, now: datetime) -> str:
    """How it takes its GPUs: `preferred (audio/mpeg matches …); it does without GPUs, as …, since 09:48`."""
    if not job.HasField("gpu_choice"):
        return ""
    choice, spec = job.gpu_choice, job.spec
    parts = [gpu_mode_word(choice.mode)]
    parts += [f"by {gpu_mode_word(spec.gpu_mode)}"] if spec.gpu_mode != choice.mode else []
    parts += [f"for {spec.content_type}"] if spec.content_type and not choice.sentence else []
    told = f"{' '.join(parts)}{f': {choice.sentence}' if choice.sentence else ''}"
    if choice.HasField("fall_back_time"):
        at = words.clock(choice.fall_back_time, now)
        told += f" (since {at})" if choice.fell_back else f"; from {at} on it does without"
    return told


def _files(spec: job_pb2.JobSpec) -> str:
    if not spec.files:
        return ""
    named = ", ".join(each.path for each in spec.files[:FILES_SHOWN])
    more = f" and {len(spec.files) - FILES_SHOWN} more" if len(spec.files) > FILES_SHOWN else ""
    return f"{named}{more} ({format_size(sum(each.size_bytes for each in spec.files))})"


def _folder(spec: job_pb2.JobSpec) -> str:
    if not spec.HasField("folder"):
        return ""
    size = format_size(spec.folder.content_bytes)
    return f"{counted(spec.folder.entry_count, 'file')}, {size}, as {spec.folder.digest[:12]}"


def _copied(spec: job_pb2.JobSpec) -> str:
    return f"of its output, on its node: {spec.output_file}" if spec.output_file else ""


def _process(settings: job_pb2.ProcessSettings) -> str:
    """How its processes run, beside the command itself."""
    nice = [f"niceness {settings.nice}"] if settings.nice else []
    return ", ".join([*nice, *(f"limit {resource_limit_text(each)}" for each in settings.rlimits)])


def _at_limit(spec: job_pb2.JobSpec) -> str:
    """What its time limit does beside ending the attempt."""
    parts = []
    if spec.HasField("limit_signal"):
        whom = " to the process that was started" if spec.limit_signal.leader_only else ""
        before = words.span(spec.limit_signal.before)
        parts.append(f"{signal_name(spec.limit_signal.signal)}{whom} {before} before")
    if spec.requeue_on_timeout:
        parts.append("queued again")
    return ", ".join(parts)


def _chosen(info: job_pb2.GpuInfo) -> str:
    """How its GPUs were chosen, with the score that each had: `the best by score: 1 (0.73), 7 (0.77)`."""
    method = METHODS.get(info.allocation_method, info.allocation_method)
    scored = [
        f"{index} ({device.availability_score:.2f})" if device.HasField("availability_score") else index
        for index, device in zip(info.indices, info.devices, strict=True)
    ]
    more = f" and {len(scored) - SCORES_SHOWN} more" if len(scored) > SCORES_SHOWN else ""
    return f"{method}: {', '.join(scored[:SCORES_SHOWN])}{more}"


def _ending(job: job_pb2.Job) -> str:
    words_of_end = end_in_words(job).removeprefix(f"job {job.id} ").removeprefix(f"array {job.id} ")
    return words_of_end if job.output_is_complete else f"{words_of_end}; the output is not complete"


def _request(spec: job_pb2.JobSpec, *, group_is_removed: bool) -> str:
    parts = []
    if gpus := gpu_count(spec):
        models = " or ".join(spec.devices[0].models)
        whole = counted(gpus, f"{models} GPU".strip())
        share = spec.devices[0].share
        if share.milli:
            whole = f"{share.milli / 1000:g} of {'each of ' if gpus > 1 else ''}{whole}"
        parts.append(f"{whole} on {spec.node_count} nodes" if spec.node_count > 1 else whole)
        if memory_bytes := spec.devices[0].min_memory_bytes or share.memory_bytes:
            parts.append(f"{format_size(memory_bytes)} free on each")
    elif spec.node_count > 1:
        parts.append(f"{spec.node_count} nodes")
    each = " on each" if spec.node_count > 1 else ""
    parts.append(counted(max(spec.cpus, 1), "CPU") + each)
    if spec.memory_bytes:
        parts.append(f"{format_size(spec.memory_bytes)} of memory{each}")
    if spec.nodelist:
        parts.append(f"on {' or '.join(spec.nodelist)}")
    if spec.exclude:
        parts.append(f"not on {' or '.join(spec.exclude)}")
    if spec.node_labels:
        parts.append(f"nodes with {words.labels(spec.node_labels, ' and ')}")
    if spec.HasField("time_limit"):
        parts.append(f"{words.span(spec.time_limit)} at most")
    parts.append(f"band {words.band(spec.band)}")
    if spec.group:
        parts.append(f"group {spec.group}{' (removed)' if group_is_removed else ''}")
    return ", ".join(parts)


def _ranks_in_lines(job: job_pb2.Job, now: datetime, look: Look) -> list[str]:
    """How each rank of the newest attempt is, where it has several."""
    newest = job.attempts[-1]
    if len(newest.ranks) < 2:
        return []
    shown = list(newest.ranks)
    if len(shown) > RANKS_SHOWN:
        shown = sorted(sorted(shown, key=_is_as_hoped)[:RANKS_SHOWN], key=lambda rank: rank.rank)
    columns: list[Column[job_pb2.PlacedRank]] = [
        Column("RANK", lambda rank: str(rank.rank), is_right=True),
        Column("WHERE", words.place, least=8),
        Column("STARTED", lambda rank: _started(rank, now)),
        Column("END", lambda rank: _with_cause(end_of(rank), rank.stop_cause) or "-", least=8),
    ]
    lines = ["", f"Ranks of attempt {newest.number}:", *draw(columns, shown, look)]
    more = len(newest.ranks) - len(shown)
    return [*lines, f"(all {len(newest.ranks)} are in: gpuctl job {job.id} --output json)"] if more else lines


def _warnings_in_lines(job: job_pb2.Job, now: datetime, look: Look) -> list[str]:
    if not job.warnings:
        return []
    columns: list[Column[job_pb2.JobWarning]] = [
        Column("TIME", lambda warning: words.clock(warning.time, now)),
        Column("WARNING", lambda warning: Cell(warning.kind, Colour.WARNING)),
        Column("IN WORDS", lambda warning: warning.sentence, least=20, wraps=True),
    ]
    return ["", f"Warnings of attempt {job.warnings[-1].attempt}:", *draw(columns, job.warnings, look)]


def _is_as_hoped(rank: job_pb2.PlacedRank) -> bool:
    return not rank.exit_reason or rank.stop_cause == "GANG" or (rank.exit.HasField("code") and rank.exit.code == 0)


def _attempt_columns(now: datetime) -> list[Column[job_pb2.Attempt]]:
    return [
        Column("ATTEMPT", lambda attempt: str(attempt.number), is_right=True),
        Column("WHERE", words.places, least=8),
        Column("STARTED", lambda attempt: _started(attempt, now)),
        Column("RAN", lambda attempt: ran(attempt, now), is_right=True),
        Column("END", _end_of_attempt, least=8),
        Column("OUTPUT", _output_of, is_right=True),
    ]


def _started(of: job_pb2.PlacedRank | job_pb2.Attempt, now: datetime) -> str:
    return words.clock(of.start_time, now) if of.HasField("start_time") else "-"


def _end_of_attempt(attempt: job_pb2.Attempt) -> str:
    cause = attempt.exit_reason if attempt.exit_reason == "TIME_LIMIT" else ""
    return _with_cause(end_of(attempt), cause) or ("unreachable" if attempt.is_unreachable else "-")


def _with_cause(end: str, cause: str) -> str:
    return f"{end} {STOPPED_IN_WORDS.get(cause, '')}".strip()


def _output_of(attempt: job_pb2.Attempt) -> str:
    if not attempt.HasField("end_time"):
        return "-"
    written = sum(end.end_offset for end in attempt.output_ends)
    if attempt.missing_output_bytes:
        return f"{format_size(written)} ({format_size(attempt.missing_output_bytes)} gone)"
    return format_size(written) + ("" if attempt.output_is_complete else " (cut)")


INDENT = 2
LABEL_CHARS = 18


def request_lines(spec: job_pb2.JobSpec, now: datetime, look: Look) -> list[str]:
    """Each option of the request with its value; where it is none by default and matters, that, too."""
    lines = []
    width = look.width - INDENT - LABEL_CHARS if look.width else 0
    for label, text in _rows(spec, now):
        first, *rest = (wrapped(clean(text), width) if width > 0 else [clean(text)]) or [""]
        lines.append(f"{'':<{INDENT}}{label:<{LABEL_CHARS}}{first}".rstrip())
        lines += [f"{'':<{INDENT + LABEL_CHARS}}{piece}" for piece in rest]
    return lines


def _rows(spec: job_pb2.JobSpec, now: datetime) -> Iterable[tuple[str, str]]:
    yield "command", shell_line(spec.argv)
    if not spec.devices:
        yield "--gpus", "none: it sees no GPU"
    for option, value in options_of(spec):
        yield option, "yes" if value is None else value
    if not spec.HasField("time_limit"):
        yield "--time-limit", "none: it may run for ever"
    yield from _left_out_when_repeated(spec, now)
    passed = [name for name in PASSED_ON if name in spec.env]
    if passed:
        yield "passed on", ", ".join(passed)


def _left_out_when_repeated(spec: job_pb2.JobSpec, now: datetime) -> Iterator[tuple[str, str]]:
    """What the command that submits a job again leaves out."""
    if spec.HasField("begin_time"):
        yield "--begin", words.full_clock(spec.begin_time, now)
    if spec.is_held:
        yield "--hold", "yes"
    if spec.trace_context:
        yield "TRACEPARENT", spec.trace_context
