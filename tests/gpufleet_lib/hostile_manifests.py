"""Manifests that no job may name, made by hand, in every way that is known: what each is, and a word of the refusal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from gpufleet.v1 import files_pb2

from gpufleet.jobs.folders import CHUNK_BYTES_MAX, CHUNKS_MAX, ENTRIES_MAX

BYTES = b"four"
DIGEST = hashlib.sha256(BYTES)


def entry(path: str, **fields: Any) -> files_pb2.FolderEntry:
    return files_pb2.FolderEntry(path=path, **fields)


def file(path: str, size: int = len(BYTES), **fields: Any) -> files_pb2.FolderEntry:
    return entry(path, size_bytes=size, **fields)


def link(path: str, target: str, **fields: Any) -> files_pb2.FolderEntry:
    return entry(path, link_target=target, **fields)


def chunk(size: int = len(BYTES), digest: bytes = DIGEST.digest()) -> files_pb2.FolderChunk:
    return files_pb2.FolderChunk(digest=digest, size_bytes=size)


def manifest(*entries: files_pb2.FolderEntry, chunks: Iterable[files_pb2.FolderChunk] = ()) -> bytes:
    message = files_pb2.FolderManifest(entries=entries, chunks=chunks)
    return message.SerializeToString(deterministic=True)


ONE = [chunk()]
_TWICE = [chunk(), chunk()]

HOSTILE: dict[str, tuple[bytes, str]] = {
    # Paths that lead elsewhere, and names that are none.
    "a path out of the folder": (manifest(file("../out"), chunks=ONE), "'..'"),
    "a path out from inside": (manifest(file("a/../../out"), chunks=ONE), "'..'"),
    "an absolute path": (manifest(file("/etc/cron.d/x"), chunks=ONE), "not relative"),
    "the folder itself": (manifest(file("."), chunks=ONE), "'.'"),
    "an empty path": (manifest(file(""), chunks=ONE), "empty"),
    "an empty part": (manifest(file("a//b"), chunks=ONE), "''"),
    "a slash at its end": (manifest(file("a/"), chunks=ONE), "''"),
    "a newline": (manifest(file("a\nb"), chunks=ONE), "control character"),
    "a NUL": (manifest(file("a\0b"), chunks=ONE), "control character"),
    "an escape of a terminal": (manifest(file("a\x1b[2Jb"), chunks=ONE), "control character"),
    "a name longer than Linux has": (manifest(file("a" * 256), chunks=ONE), "255 bytes"),
    "a path longer than any": (manifest(file("/".join(["a" * 200] * 6)), chunks=ONE), "1,024 bytes"),
    "a name that is no UTF-8": (manifest(file("aXb"), chunks=ONE).replace(b"aXb", b"a\xffb"), "format"),
    # Links.
    "a link out": (manifest(link("a", "../secret")), "out of the folder"),
    "a link out from inside": (manifest(link("d/a", "../../secret")), "out of the folder"),
    "a link out by an inner folder": (manifest(file("d/f"), link("e", "d/../../x"), chunks=ONE), "out of the folder"),
    "an absolute link": (manifest(link("a", "/etc/shadow")), "not relative"),
    "a link to what is not there": (manifest(link("a", "missing")), "does not go along"),
    "a link through another one": (
        manifest(link("a", "d/b/../x"), link("d/b", "c"), file("d/c/f"), file("x"), chunks=_TWICE),
        "through another one",
    ),
    "a link through a file": (manifest(file("f"), link("l", "f/.."), chunks=ONE), "does not go along"),
    "a link to the folder itself": (manifest(file("d/f"), link("d/l", ".."), chunks=ONE), "the folder itself"),
    "a file behind a link": (manifest(file("d/f"), link("l", "d"), file("l/f"), chunks=_TWICE), "others lie in it"),
    "a link that has a size": (manifest(link("a", "b", size_bytes=4), file("b", 0), chunks=ONE), "is no file"),
    "a link that is a program": (manifest(link("a", "b", is_executable=True), file("b", 0)), "is no file"),
    "a link that is a folder": (manifest(link("a", "b", is_empty_folder=True), file("b", 0)), "a link and a folder"),
    # What does not fit together.
    "a path twice": (manifest(file("a"), file("a"), chunks=_TWICE), "each once"),
    "paths out of order": (manifest(file("b"), file("a"), chunks=_TWICE), "in order"),
    "a file in a file": (manifest(file("a"), file("a/b"), chunks=_TWICE), "others lie in it"),
    "a file in an empty folder": (
        manifest(entry("a", is_empty_folder=True), file("a/b"), chunks=ONE),
        "others lie in it",
    ),
    "an empty folder with a size": (manifest(entry("a", is_empty_folder=True, size_bytes=4), chunks=ONE), "is no file"),
    # Contents.
    "files larger than the chunks": (manifest(file("a", 5), chunks=ONE), "its chunks 4"),
    "chunks larger than the files": (manifest(file("a", 3), chunks=ONE), "its chunks 4"),
    "a size below none": (manifest(file("a", -1)), "-1 bytes"),
    "sizes that come to nothing": (manifest(file("a", 2**62), file("b", -(2**62))), "bytes"),
    "a size beyond all": (manifest(file("a", 2**60)), "bytes"),
    "a chunk of nothing": (manifest(chunks=[chunk(0)]), "a chunk has 0"),
    "a chunk that is too large": (
        manifest(file("a", CHUNK_BYTES_MAX + 1), chunks=[chunk(CHUNK_BYTES_MAX + 1)]),
        "8,388",
    ),
    "a chunk without a digest": (manifest(file("a"), chunks=[chunk(digest=b"")]), "no SHA-256"),
    "a digest that is a path": (manifest(file("a"), chunks=[chunk(digest=b"../../etc/passwd")]), "no SHA-256"),
    # What is no manifest at all.
    "no manifest": (b"#!/bin/sh\n", "format"),
    "a field that nobody knows": (manifest(file("a"), chunks=ONE) + b"\x7a\x01x", "not known here"),
    "a field of an entry that nobody knows": (b"\n\x06\n\x01a\x7a\x01x", "not known here"),
    "a manifest twice": (manifest(file("a"), chunks=ONE) * 2, "another order"),
    "too many entries": (
        manifest(*(file(f"{number:06}", 0) for number in range(ENTRIES_MAX + 1))),
        "100,001 entries",
    ),
    "too many chunks": (
        manifest(file("a", 4 * (CHUNKS_MAX + 1)), chunks=ONE * (CHUNKS_MAX + 1)),
        "100,001 chunks",
    ),
}
