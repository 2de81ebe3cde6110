"""The commented file that `config init PROGRAM` writes: each setting with meaning, bounds and default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from gpufleet.config_layers import variable_name
from gpufleet.settings import Setting, sections_of, settings_of

LINE_CHARS_MAX = 100


def template(cls: type[Any], program: str) -> str:
    """The file's text. Prose begins with `# `, a setting that holds its default with `#` alone."""
    prefix = f"GPUCTL_{program.upper()}_"
    example = variable_name(prefix, next(iter(settings_of(cls))))
    head = [
        f"# Settings of the gpufleet {program}. Each line shows the default; remove its # to change it.",
        f"# Flags and variables ({example}) go before this file. Check it with: gpuctl config check FILE",
        "# After a change, SIGHUP applies the settings marked (reloads); the others need a restart.",
    ]
    return "\n".join([*head, "", *_lines(cls)]).rstrip() + "\n"


def _lines(cls: type[Any]) -> Iterator[str]:
    for key, described in settings_of(cls).items():
        if "." not in key:
            yield from _setting(key, described)
    for name, (inner, doc) in sections_of(cls).items():
        yield from _prose(doc)
        yield f"[{name}]"
        yield ""
        yield from _lines(inner)


def _setting(key: str, described: Setting) -> Iterator[str]:
    yield from _prose(described.doc)
    yield from _prose(_facts(described))
    # A default in words depends on the machine; the file should read the same on all of them.
    yield f"#{key} =" if described.default_text else f"#{key} = {described.kind.to_toml(described.default())}"
    yield ""


def _facts(described: Setting) -> str:
    show = described.kind.to_toml
    facts = [described.kind.name]
    if described.low is not None:
        facts.append(f"at least {show(described.low)}")
    if described.high is not None:
        facts.append(f"at most {show(described.high)}")
    if described.default_text:
        facts.append(f"default: {described.default_text}")
    return "; ".join(facts) + (" (reloads)" if described.is_reloadable else "")


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, LINE_CHARS_MAX, initial_indent="# ", subsequent_indent="# ")
