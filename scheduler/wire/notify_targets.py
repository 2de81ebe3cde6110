"""What a job may name to be told of its course: a line for a shell, or a URL."""

import re
from urllib.parse import urlsplit

from gpufleet.errors import invalid
from gpufleet.jobs.notify import is_url

NOTIFY_BYTES_MAX = 8_192
_BREAKS_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_OF_A_URL = re.compile(r"[\x21-\x7e]+")


def notify_of(text: str, path: str) -> str:
    """What a job's notices go to, checked; empty for none. Errors: INVALID_ARGUMENT with the path.

    A URL with a password is refused, because every one who may see the job sees its specification.
    """
    if len(text.encode()) > NOTIFY_BYTES_MAX:
        raise invalid(path, f"is longer than {NOTIFY_BYTES_MAX:,} bytes", next_step="put the command into a file")
    if _BREAKS_A_LINE.search(text):
        raise invalid(path, "holds a line break or another control character", next_step="give one line")
    if text and not text.strip():
        raise invalid(path, "is blank", next_step="give a command or a URL, or leave it out")
    if is_url(text):
        _check_url(text, path)
    return text


def _check_url(text: str, path: str) -> None:
    scheme = text.partition(":")[0].lower()
    if scheme not in ("http", "https"):
        raise invalid(path, f"is a URL of the scheme {scheme[:20]!r}", next_step="give http://... or https://...")
    if not _OF_A_URL.fullmatch(text):
        raise invalid(path, "is a URL with spaces or characters beyond ASCII", next_step="percent-encode them")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if not host or port == 0:
        raise invalid(path, "is a URL without a host, or with a port that is none", next_step="give https://HOST/PATH")
    if "@" in parts.netloc:
        raise invalid(
            path,
            "is a URL with a user name or password, which everybody who sees the job could read",
            next_step="give a command that reads the password from a file of yours",
        )
