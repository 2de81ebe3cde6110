"""What jobs of `--gpu-mode auto` are decided by, in a settings file: content types, and whether they want a GPU."""

from __future__ import annotations

import re
from typing import Any

from gpufleet.config.kinds import Kind, Unreadable, quoted, table_of
from gpufleet.text.spelling import did_you_mean

MODES = ("preferred", "required", "never")

PATTERNS_MAX = 1_000

DEFAULT_MODES = (("audio/*", "preferred"), ("image/*", "preferred"), ("video/*", "preferred"), ("*", "never"))
"""What holds unless a site says otherwise; an entry of a site's own adds to these, or takes the place of one."""

ContentTypes = tuple[tuple[str, str], ...]

_PATTERN = re.compile(r"\*|[a-z0-9!#$&^_.+-]{1,127}/[a-z0-9!#$&^_.+-]{0,127}\*?")
_EXAMPLE = '{ "application/pdf" = "preferred" }'


def pattern_of(name: str) -> str:
    """A pattern of content types as it is kept. Raises Unreadable."""
    pattern = name.lower()
    if not _PATTERN.fullmatch(pattern) or pattern.endswith("/"):
        raise Unreadable(f'{quoted(name)}: this is no content type such as "audio/mpeg", "audio/*" or "*"')
    return pattern


def _from_toml(raw: Any) -> ContentTypes:
    if not isinstance(raw, dict):
        raise Unreadable(f"this is a table such as {_EXAMPLE}")
    if len(raw) > PATTERNS_MAX:
        raise Unreadable(f"{len(raw):,} patterns are more than the {PATTERNS_MAX:,} that are taken")
    modes = dict(DEFAULT_MODES)
    for name, mode in raw.items():
        pattern = pattern_of(name)
        if mode not in MODES:
            hint = did_you_mean(mode, MODES) if isinstance(mode, str) else ""
            raise Unreadable(f"{quoted(name)}: {mode} is not preferred, required or never{hint}")
        modes[pattern] = mode
    return tuple(modes.items())


def _to_toml(types: ContentTypes) -> str:
    return f"{{ {', '.join(f'{quoted(pattern)} = {quoted(mode)}' for pattern, mode in types)} }}"


CONTENT_TYPES: Kind[ContentTypes] = Kind(
    "a table of modes by content type", _from_toml, lambda text: _from_toml(table_of(text, _EXAMPLE)), _to_toml
)
