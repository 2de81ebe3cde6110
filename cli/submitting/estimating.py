"""What `estimate` and `submit --config` ask and show."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpufleet.errors import invalid
from gpufleet.fleet.client import connected
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.estimating import ask_for_estimate, estimated, file_text, say_unused
from gpufleet.fleet.submitting.job_options import JobOptions

from ..printing import print_message
from ..screen import say


def config_of(path: str | None, model: str | None, degrees: Mapping[str, str | None]) -> tuple[str, str]:
    """The configuration as JSON, and what it is called: a file's, or one made of options."""
    given = {name: text for name, text in degrees.items() if text is not None}
    typed = [f"--{name}" for name in (["model"] if model is not None else []) + list(given)]
    if path is not None:
        if typed:
            raise invalid(typed[0], f"{path} says it", next_step="Give a file or options, not both.")
        return file_text(path, "CONFIG.json"), path
    if not typed:
        raise invalid(
            "CONFIG.json", "is missing", next_step="Name a file, or: gpuctl estimate --model llama-3-70b --tp 4"
        )
    config: dict[str, object] = {"parameters": {name: _numbers(f"--{name}", text) for name, text in given.items()}}
    if model is not None:
        config["model"] = {"id_or_path": model}
    return json.dumps(config), "the options"


def show_estimate(settings: Settings, config: str, called: str) -> None:
    """Ask, and print the one line; what was not used is told on stderr."""
    with connected(settings) as client:
        answer = ask_for_estimate(client, config, called)
    if settings.format in ("json", "jsonl"):
        print_message(answer, settings.format)
        return
    print(str(answer.device_count) if settings.format == "name" else answer.sentence)
    say_unused(answer, say)


def filled(settings: Settings, options: JobOptions) -> JobOptions:
    """The options with --gpus and --min-memory as the file of --config needs them, which is said on stderr."""
    return estimated(settings, options, say)


def _numbers(option: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= 9 for word in words):
        raise invalid(option, f'"{text}" is not a number', next_step="Write it as 4, or as a grid: 1,2,4.")
    return [int(word) for word in words]
