"""The words of a transcript's commands, and the values that they stand for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus, StopCause
from gpufleet.text.units import parse_duration, parse_size
from scheduler.state.attempts import OutputEnd, OutputStream, RankExit
from scheduler.state.events import ReportedExited, ReportedRefused, ReportedRunning, ReportedStarting, ReportedState
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey
from scheduler.state.indices import Indices
from scheduler.state.jobs import Items
from scheduler.state.specs import Dependency, EndWanted, GpuChoice, GpuMode, JobSpec, NodePins, Resources
from scheduler.state.units import Instant, Span
from scheduler.state.used import DeviceUse, RankUse, Statistic


@dataclass(slots=True)
class Words:
    """A command's words: positions in order, values by name, switches. What nobody asked for is an error."""

    positions: list[str]
    values: dict[str, str]

    @classmethod
    def of(cls, text: str) -> Words:
        words = shlex.split(text, comments=True)
        values = dict(word.split("=", 1) for word in words if re.match(r"[a-z][a-z-]*=", word))
        return cls([word for word in words if not re.match(r"[a-z][a-z-]*=", word)], values)

    def next(self) -> str:
        return self.positions.pop(0)

    def rest(self) -> list[str]:
        found, self.positions = self.positions, []
        return found

    def switch(self, name: str) -> bool:
        is_there = name in self.positions
        if is_there:
            self.positions.remove(name)
        return is_there

    def value(self, name: str, default: str = "") -> str:
        return self.values.pop(name, default)

    def integer(self, name: str, default: int) -> int:
        return int(self.value(name, str(default)))

    def span(self, name: str) -> Span | None:
        text = self.value(name)
        return span_of(text) if text else None

    def memory(self, name: str, default: int = 0) -> int:
        text = self.value(name)
        return parse_size(text) if text else default

    def list(self, name: str) -> tuple[str, ...]:
        text = self.value(name)
        return tuple(text.split(",")) if text else ()

    def assert_empty(self) -> None:
        assert not self.positions, f"nobody asked for {self.positions}"
        assert not self.values, f"nobody asked for {self.values}"


def span_of(text: str) -> Span:
    return Span(parse_duration(text) // timedelta(microseconds=1))


def spec_of(words: Words, now: Instant) -> JobSpec:
    """The job that a submit asks for; begin= is a span from now."""
    begin = words.span("begin")
    pins = tuple(
        NodePins(node=NodeName(node), indices=tuple(map(int, indices.split("+"))))
        for node, indices in (split_once(pin, ":") for pin in words.list("pins"))
    )
    share_milli = round(float(words.value("share", "0")) * 1000)
    gpus = words.integer("gpus", sum(len(pin.indices) for pin in pins) or (1 if share_milli else 0))
    resources = Resources(
        gpus=gpus,
        share_milli=share_milli,
        min_memory_bytes=parse_size(words.values.pop("min-memory")) if "min-memory" in words.values else None,
        models=words.list("models"),
        allow_busy=words.switch("allow-busy"),
        pins=pins,
        cpus=words.integer("cpus", 1),
        memory_bytes=words.memory("memory"),
        nodelist=tuple(map(NodeName, words.list("nodelist"))),
        exclude=tuple(map(NodeName, words.list("exclude"))),
        shared_root=words.value("root"),
        node_labels=tuple(split_once(label, ":") for label in words.list("labels")),
        ignores_telemetry=words.switch("ignore-telemetry"),
        node_count=words.integer("nodes", 0),
        no_span=words.switch("no-span"),
    )
    mode, content_type = words.value("gpu-mode"), words.value("content-type")
    asked = GpuMode(mode or "required")
    return JobSpec(
        gpu_choice=GpuChoice(asked=asked, mode=asked, content_type=content_type) if mode or content_type else None,
        argv=("python", "train.py"),
        name="train",
        cwd="/",
        resources=resources,
        time_limit=words.span("time-limit"),
        is_requeueable=not words.switch("no-requeue"),
        requeue_fence=words.span("fence"),
        begin_at=None if begin is None else Instant(now + begin),
        after=tuple(dependency_of(text) for text in words.list("after")),
        queue_timeout=words.span("queue-timeout"),
        retries=words.integer("retries", 0),
        blame_limit=words.integer("blame-limit", 0) or None,
        is_preemptible=words.switch("preemptible"),
        notify=words.value("notify"),
        no_warnings=words.switch("no-warnings"),
        results=words.list("results"),
        keep=words.list("keep"),
        is_requeued_on_timeout=words.switch("requeue-on-timeout"),
    )


def items_of(words: Words) -> Items | None:
    """The items of an array: array=1-9,12 and cap=, max-fails=."""
    text = words.value("array")
    if not text:
        return None
    bounds = [part.partition("-") for part in text.split(",")]
    indices = Indices.of_ranges([range(int(low), int(high or low) + 1) for low, _, high in bounds])
    return Items(indices=indices, active_max=words.integer("cap", 0), failures_max=words.integer("max-fails", 0))


def dependency_of(text: str) -> Dependency:
    job, _, wanted = text.partition(":")
    return Dependency(job=JobId(int(job)), wanted=EndWanted(wanted or "ok"))


def exit_of(words: Words, rank: int) -> RankExit:
    cause = next((cause for word, cause in CAUSES.items() if words.switch(word)), None)
    status: ExitStatus | None
    if words.switch("unknown"):
        status = None
    elif "signal" in words.values or (cause is not None and "code" not in words.values):
        status = ExitSignal(signal=words.integer("signal", 15))
    else:
        status = ExitCode(code=words.integer("code", 0))
    reasons = {ExitCode: "EXITED", ExitSignal: "SIGNALLED", type(None): "EXIT_UNKNOWN"}
    return RankExit(
        exit=status,
        reason=words.value("reason", reasons[type(status)]),
        message=words.value("message"),
        stop_cause=cause,
        output_ends=ends_of(words, rank),
        output_is_complete=status is not None,
        is_blameless=words.switch("blameless"),
    )


def use_of(words: Words, uuids: Sequence[DeviceUuid]) -> RankUse:
    """What a rank used: `memory=2GB,60GB` the most on each of its devices, `watched=15m`."""
    span = words.span("watched") or Span(0)
    devices = tuple(
        DeviceUse(uuid=uuid, memory_used_bytes=Statistic(low=0, high=parse_size(size), mean=0, count=1))
        for uuid, size in zip(uuids, words.list("memory"), strict=True)
    )
    return RankUse(span=span, sample_count=1, devices=devices)


CAUSES = {
    "by-time-limit": StopCause.TIME_LIMIT,
    "by-cancel": StopCause.CANCELLED,
    "by-fence": StopCause.FENCED,
    "by-requeue": StopCause.REQUEUED,
    "by-preemption": StopCause.PREEMPTED,
    "by-kill": StopCause.STALE,
    "by-gang": StopCause.GANG,
}


def ends_of(words: Words, rank: int) -> tuple[OutputEnd, ...]:
    return tuple(
        OutputEnd(rank=rank, stream=stream, end_offset=int(words.values.pop(stream.name.lower())))
        for stream in OutputStream
        if stream.name.lower() in words.values
    )


def seen_of(name: str, what: str) -> tuple[RankKey, ReportedState]:
    kind, _, detail = what.partition(":")
    key = key_of(name)
    match kind:
        case "running":
            ran, _, limit = detail.partition(":limit=")
            told = None if not limit else Span(0) if limit == "none" else span_of(limit)
            return key, ReportedRunning(run_span=span_of(ran or "1s"), time_limit=told)
        case "starting":
            return key, ReportedStarting(time_limit=span_of(detail.removeprefix("limit=")) if detail else None)
        case "refused":
            return key, ReportedRefused(reason=detail)
        case "exited":
            told_words = Words.of(detail.replace("+", " "))
            return key, ReportedExited(exit=exit_of(told_words, key.rank), started_ago=told_words.span("ran"))
        case _:
            raise AssertionError(f"{what}: running, starting, refused or exited")


def key_of(text: str) -> RankKey:
    job, rest = split_once(text, "/")
    attempt, _, rank = rest.partition(".")
    return RankKey(JobId(int(job)), int(attempt), int(rank or 0))


def job_ids(words: Words) -> tuple[JobId, ...]:
    return tuple(JobId(int(word)) for word in words.rest())


def split_once(text: str, by: str) -> tuple[str, str]:
    left, found, right = text.partition(by)
    assert found, f"{text!r} has no {by!r}"
    return left, right
