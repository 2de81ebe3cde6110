"""What `[files] store` names: the data folder, another folder, or a bucket of an S3-compatible object store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

KEY_BYTES_MAX = 512
"""Of the prefix in a bucket; S3 takes keys of 1,024 bytes, and what is below the prefix needs some of them."""
FORMS = 'write a folder, "/mnt/team/blobs", or a bucket, "s3://BUCKET/PREFIX"'
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/=+@,-]*")


@dataclass(frozen=True, slots=True)
class FileStorePlace:
    """Where files are stored: a folder, or a bucket and the prefix of its keys, which is empty or ends with a slash."""

    folder: Path | None = None
    bucket: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        """As it is set, and without anything secret."""
        return str(self.folder) if self.folder is not None else f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def file_store_place(text: str) -> FileStorePlace | None:
    """The place that a setting names; None for the data folder. Errors: ValueError, whose text follows the key."""
    if not text:
        return None
    if text.startswith("/"):
        return FileStorePlace(folder=_folder(text))
    try:
        url = urlsplit(text)
        has_more = bool(url.query or url.fragment or "@" in url.netloc)
    except ValueError:
        raise ValueError(f"is no folder and no URL: {FORMS}") from None
    if "@" in url.netloc:
        raise ValueError("must hold no keys: they come from the AWS variables, or from s3_key_file")
    if url.scheme == "file" and url.netloc in ("", "localhost") and not has_more:
        return FileStorePlace(folder=_folder(url.path))
    if url.scheme != "s3" or has_more:
        raise ValueError(f"is no folder and no bucket: {FORMS}")
    if not _BUCKET.fullmatch(url.netloc):
        raise ValueError(f"names no bucket that there can be ({url.netloc!r}): {FORMS}")
    prefix = url.path.strip("/")
    if not _PREFIX.fullmatch(prefix) or len(prefix) > KEY_BYTES_MAX or {"", ".", ".."} & set(prefix.split("/")[1:]):
        raise ValueError(f"names a prefix with other characters than keys should have, or too long: {FORMS}")
    if prefix in (".", ".."):
        raise ValueError(f"names a prefix that is no name: {FORMS}")
    return FileStorePlace(bucket=url.netloc, prefix=f"{prefix}/" if prefix else "")


def trouble_with_endpoint(text: str) -> str:
    """Why this is not the URL of an object store, in words that follow the key; empty where it is."""
    step = 'write "https://HOST:PORT"'
    try:
        url = urlsplit(text)
        has_port = url.port is None or url.port > 0
    except ValueError:
        return f"is no URL: {step}"
    if "@" in url.netloc:
        return "must hold no keys: they come from the AWS variables, or from s3_key_file"
    if url.scheme not in ("http", "https") or not url.hostname or not has_port:
        return f"is no URL of a server: {step}"
    if url.path.strip("/") or url.query or url.fragment:
        return f"holds more than a server; the bucket and its prefix belong into files.store: {step}"
    return ""


def _folder(text: str) -> Path:
    if not text.startswith("/") or "\x00" in text or ".." in text.split("/"):
        raise ValueError(f"must be a whole path, from / on and without ..: {FORMS}")
    return Path(text)
