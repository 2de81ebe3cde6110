"""What a file is said to be by its name, so that a browser that gets it does nothing in this gateway's name. Pure.

Whoever runs a job chooses its files. What a browser would run, or take for a page or a style, is said to be nothing but
bytes; and only what it can do no more with than show is shown in a window.
"""

from __future__ import annotations

import mimetypes
from urllib.parse import quote

BYTES = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What the dashboard shows as pictures."""

_PASSIVE = ("audio/", "video/", "font/", "image/")
_PASSIVE_TYPES = frozenset(
    {
        *("application/json", "application/pdf", "application/zip", "application/gzip", "application/x-tar"),
        *("text/csv", "text/tab-separated-values"),
    }
)
_PACKED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_TEXT_ENDS = (".txt", ".log", ".out", ".err", ".md", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".jsonl", ".sh", ".py")

_BY_NAME = mimetypes.MimeTypes(filenames=())
"""What Python itself knows; a machine's own lists differ."""

_BY_NAME.add_type("image/webp", ".webp")  # which Python knows since 3.13


def media_type_of(path: str) -> str:
    """The media type of a file of this name."""
    name = path.rpartition("/")[2].lower()
    if name.endswith(_TEXT_ENDS):
        return TEXT
    # guess_type takes a URL: what looks like one in a name must not be read as such.
    found, packed = _BY_NAME.guess_type("x" + name.replace(":", "_"))
    if packed is not None:
        return _PACKED.get(packed, BYTES)
    if found is None or found.endswith("+xml"):
        return BYTES
    return found if found in _PASSIVE_TYPES or found.startswith(_PASSIVE) else BYTES


def disposition_of(path: str) -> str:
    """Whether a browser shows the file or stores it, and under which name (RFC 6266)."""
    found = media_type_of(path)
    kind = "inline" if found in PICTURES or found == TEXT else "attachment"
    return f"{kind}; filename*=UTF-8''{quote(path.rpartition('/')[2], safe='')}"
