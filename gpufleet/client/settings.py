"""The settings of a client: given by keyword, else in a variable GPUFLEET_INFERENCE_…, else the default."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

from gpufleet.config.kinds import BOOLEAN, INTEGER, PATH, SECONDS, SIZE, TEXT, TEXTS, Kind, Unreadable, one_of
from gpufleet.config.layers import Layer, Problem, config_error, variable_layer
from gpufleet.config.merged import resolve
from gpufleet.config.settings import setting, settings_of
from gpufleet.text.spelling import did_you_mean

VARIABLE_PREFIX = "GPUFLEET_INFERENCE_"


def _seconds(raw: Any) -> float:
    return float(SECONDS.from_toml(raw).total_seconds())


SECONDS_NUMBER: Kind[float] = Kind(
    SECONDS.name, _seconds, lambda text: SECONDS.from_text(text).total_seconds(), lambda value: f"{value:g}"
)
"""A number of seconds; also a text with a unit, such as "250ms"."""


def _share(raw: Any) -> float:
    if type(raw) not in (int, float) or not math.isfinite(raw):
        raise Unreadable("it is not a number from 0 to 1")
    return float(raw)


def _share_text(text: str) -> float:
    try:
        return _share(float(text))
    except ValueError:
        raise Unreadable(f'"{text}" is not a number from 0 to 1') from None


SHARE: Kind[float] = Kind("a number from 0 to 1", _share, _share_text, lambda value: f"{value:g}")

DAY_S = 86_400.0

TYPE = re.compile(r"[\w.+*-]{1,80}/[\w.+*-]{1,80}( *;[ -~]{0,200})?", re.ASCII)
"""A content type, as a header takes it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientSettings:
    """What a client does, and where. Every field has a variable: GPUFLEET_INFERENCE_ and its name in capitals."""

    model: str = setting(
        "", "The model's name. Without addresses it is asked for through the gateway.", TEXT, default_text="none"
    )
    addresses: tuple[str, ...] = setting((), "Workers that are asked without a gateway: HOST:PORT, or URLs.", TEXTS)
    cpu_model: str = setting(
        "", "A model behind the gateway that runs on CPUs, to fall back to.", TEXT, default_text="none"
    )
    cpu_addresses: tuple[str, ...] = setting(
        (), "Workers on CPUs to fall back to, whatever they say of themselves.", TEXTS
    )
    backend: str = setting(
        "auto",
        "What may answer: auto is GPU workers, else CPU workers, else the callable; the others are that one alone.",
        one_of("auto", "gpu", "cpu", "callable"),
    )
    gpu_mode: str = setting(
        "",
        "How requests through a gateway take GPUs, by a model and its CPU model: required, preferred, never or auto.",
        one_of("", "required", "preferred", "never", "auto"),
        default_text="as the model is served",
    )
    content_type: str = setting(
        "", "What the items are, by which auto decides: audio/mpeg.", TEXT, default_text="not said"
    )
    gateway: str = setting(
        "",
        "The gateway's address as a URL.",
        TEXT,
        default_text="that of gpuctl's context, or http://127.0.0.1:7860 where its scheduler is on this machine",
    )
    token: str = setting("", "Your token, for the gateway alone.", TEXT, default_text="as gpuctl finds it")
    token_file: Path | None = setting(
        None, "The file with your token, for the gateway alone.", PATH, default_text="as gpuctl finds it"
    )
    ca_file: Path | None = setting(
        None,
        "The authority that signed the certificates of gateway and workers, PEM.",
        PATH,
        default_text="gpuctl's, or the system's authorities",
    )
    insecure: bool = setting(False, "Send the token to a gateway on another machine without encryption.", BOOLEAN)

    batch_size: int = setting(
        32, "The most items of a request; a worker's own limit holds as well.", INTEGER, low=1, high=100_000
    )
    concurrency: int = setting(
        4, "Requests that a worker, or a gateway, is given at a time.", INTEGER, low=1, high=1_000
    )
    stream_batches: int = setting(
        16, "Batches of a stream that are read ahead, under way or not yet fetched.", INTEGER, low=1, high=10_000
    )
    binary: bool = setting(True, "Send arrays and bytes by the binary tensor extension; else as JSON.", BOOLEAN)
    answer_bytes_max: int = setting(256 * 10**6, "An answer that is larger is refused.", SIZE, low=1_000, high=10**12)

    timeout_s: float = setting(60.0, "The longest that one request may take.", SECONDS_NUMBER, low=0.001, high=DAY_S)
    deadline_s: float = setting(
        600.0,
        "The longest that a call may take with all its waits and retries.",
        SECONDS_NUMBER,
        low=0.001,
        high=30 * DAY_S,
    )
    connect_timeout_s: float = setting(5.0, "The longest wait for a connection.", SECONDS_NUMBER, low=0.001, high=DAY_S)
    start_wait_s: float = setting(
        60.0,
        "How long workers that start are waited for before another backend is asked, or items are given up.",
        SECONDS_NUMBER,
        low=0.0,
        high=DAY_S,
    )
    health_interval_s: float = setting(
        10.0,
        "How often a worker is asked how it is, while there are calls; one that is not ready once a second.",
        SECONDS_NUMBER,
        low=0.01,
        high=DAY_S,
    )
    health_timeout_s: float = setting(5.0, "The longest wait for that answer.", SECONDS_NUMBER, low=0.001, high=DAY_S)

    retries: int = setting(5, "How often a request that failed for a moment is sent again.", INTEGER, low=0, high=100)
    poison_breaks: int = setting(
        2,
        "An item that so many workers ended with, asked alone, gets the error poison and is not asked again.",
        INTEGER,
        low=2,
        high=100,
    )
    backoff_first_s: float = setting(
        0.1,
        "The pause before the first retry; it doubles, and up to half of it is left to chance.",
        SECONDS_NUMBER,
        low=0.0,
        high=DAY_S,
    )
    backoff_max_s: float = setting(10.0, "The longest pause before a retry.", SECONDS_NUMBER, low=0.0, high=DAY_S)

    circuit_failures: int = setting(
        15, "So many failed requests within the window open a worker's circuit.", INTEGER, low=1, high=10_000
    )
    circuit_requests_min: int = setting(
        10, "It stays closed while fewer requests than this ended within the window.", INTEGER, low=1, high=10_000
    )
    circuit_window_s: float = setting(60.0, "The window of a circuit.", SECONDS_NUMBER, low=0.001, high=DAY_S)
    circuit_open_s: float = setting(
        20.0, "After so long an open circuit lets one request at a time through.", SECONDS_NUMBER, low=0.001, high=DAY_S
    )
    circuit_successes: int = setting(3, "So many of these in a row that succeed close it.", INTEGER, low=1, high=10_000)

    warn_success_below: float = setting(
        0.95, "Warn when a smaller share of the items has an answer.", SHARE, low=0.0, high=1.0
    )
    warn_batch_mean_above_s: float = setting(
        0.5, "Warn when a batch takes longer in the mean.", SECONDS_NUMBER, low=0.0, high=DAY_S
    )
    warn_gpu_share_below: float = setting(
        0.8, "Warn when GPUs answered a smaller share, where they are the preferred backend.", SHARE, low=0.0, high=1.0
    )
    warn_fallback_above: float = setting(
        0.05, "Warn when a larger share was answered by a fall-back.", SHARE, low=0.0, high=1.0
    )

    def __repr__(self) -> str:
        said = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.name != "token")
        return f"ClientSettings({', '.join(said)})"

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Values that do not fit together."""
        if self.token and self.token_file is not None:
            yield "token_file", "give the token itself or its file, not both"
        named = [*self.addresses, *self.cpu_addresses]
        twice = next((each for each in named if named.count(each) > 1), None)
        if twice is not None:
            yield "addresses", f"{twice} is named twice"
        if named and not self.model:
            yield "model", "say which model of the workers is meant"
        if self.gpu_mode and self.addresses:
            yield "gpu_mode", "goes with a gateway, which knows a model's CPU model; of workers by address say backend"
        if self.gpu_mode == "auto" and not self.content_type:
            yield "content_type", "say what the items are, as in audio/mpeg: auto decides by it"
        if self.content_type and not TYPE.fullmatch(self.content_type):
            yield "content_type", f"{self.content_type[:80]!r} is no content type, such as audio/mpeg"
        if self.backoff_first_s > self.backoff_max_s:
            yield (
                "backoff_first_s",
                f"{self.backoff_first_s:g} s is longer than the longest pause, {self.backoff_max_s:g} s",
            )


class GivenSettings(TypedDict, total=False):
    """The same by keyword: seconds as a number, a text with a unit, or a timedelta."""

    model: str
    addresses: Sequence[str]
    cpu_model: str
    cpu_addresses: Sequence[str]
    backend: str
    gpu_mode: str
    content_type: str
    gateway: str
    token: str
    token_file: str | Path
    ca_file: str | Path
    insecure: bool
    batch_size: int
    concurrency: int
    stream_batches: int
    binary: bool
    answer_bytes_max: int | str
    timeout_s: float | str | timedelta
    deadline_s: float | str | timedelta
    connect_timeout_s: float | str | timedelta
    start_wait_s: float | str | timedelta
    health_interval_s: float | str | timedelta
    health_timeout_s: float | str | timedelta
    retries: int
    poison_breaks: int
    backoff_first_s: float | str | timedelta
    backoff_max_s: float | str | timedelta
    circuit_failures: int
    circuit_requests_min: int
    circuit_window_s: float | str | timedelta
    circuit_open_s: float | str | timedelta
    circuit_successes: int
    warn_success_below: float
    warn_batch_mean_above_s: float | str | timedelta
    warn_gpu_share_below: float
    warn_fallback_above: float


def load_settings(given: GivenSettings, environment: Mapping[str, str] = os.environ) -> ClientSettings:
    """The settings: by keyword, else the variable, else the default. Raises CONFIG_INVALID with all problems."""
    described = settings_of(ClientSettings)
    problems = [
        Problem("InferenceClient", name, f"there is no such setting{did_you_mean(name, described)}")
        for name in given
        if name not in described
    ]
    values = {name: _plain(name, value) for name, value in given.items() if name in described}
    layers = [
        Layer(values, lambda _: "InferenceClient", is_text=False),
        variable_layer(ClientSettings, VARIABLE_PREFIX, environment),
    ]
    resolved = resolve(ClientSettings, layers, problems)
    if resolved is None:
        raise config_error(problems)
    return resolved.settings


def _plain(name: str, value: object) -> object:
    """A keyword's value as a file would have it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Path):
        return str(value)
    if name == "answer_bytes_max" and type(value) is int:
        return f"{value}B"
    return list(value) if isinstance(value, tuple) else value
