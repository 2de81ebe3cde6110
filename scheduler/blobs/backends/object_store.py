"""Whole files in a bucket of an S3-compatible object store, by fsspec: PREFIX/USER/DIGEST, and notes as in a folder.

A file is sent once it lies whole in the data folder and has its digest; so an upload that was cut is never an object. A
large one goes in parts, which become an object when the last of them was taken. Each request is signed with the sum of
what it carries, which the store checks. No object tells when it was last needed: where this matters, it is known since
the start alone, and what nobody needs is kept for longer by that.
"""

import asyncio
import configparser
import math
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpufleet.config.file_store import FileStorePlace
from gpufleet.config.scheduler_settings import FileSettings
from gpufleet.errors import GpufleetError, Reason

from ...state.ids import UserName
from ..on_disk import FoundBlob, Key
from .backend import MARKER, NOTE_BYTES_MAX, NOTES, FoundNote, Reader

CONNECT_SECONDS_MAX = 5.0
READ_SECONDS_MAX = 30.0
"""A store that says nothing for so long does not answer."""
CLOSE_SECONDS_MAX = 2.0
"""Connections that are not closed by then end with the program."""
TRIES_MAX = 3
"""Of each request, a moment apart; then the call fails, and who made it tries again later."""
CONNECTIONS_MAX = 64
PAGE_KEYS = 1_000
PART_BYTES = 8 * 2**20
"""A file that is longer than two of these goes in parts of this size, or larger ones where they were too many."""
PARTS_MAX = 9_000
PARTS_AT_ONCE = 4
LARGE_AT_ONCE = 4
"""So many files go in parts at the same time: what is in memory of all of them is PART_BYTES * PARTS_AT_ONCE each."""
READ_BYTES = 4 * 2**20
"""A file is read so far ahead."""
UNFINISHED_SECONDS_MAX = 86_400.0
"""Parts of a file that are older than this are dropped: who sent them has died."""
WORDS_CHARS_MAX = 300
"""Of what the store says of an error."""
_OWN_KEY = re.compile(r"(?P<user>[^/]+)/(?P<digest>[0-9a-f]{64})")


class ObjectReader:
    """Reads an object in blocks, so that nothing is held of it while who reads it is slow."""

    def __init__(self, backend: "ObjectStoreBackend", key: Key, size: int) -> None:
        self._backend = backend
        self._key = key
        self._block = b""
        self._begin = 0
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from there on. Errors: STORE_UNAVAILABLE; FILE_NOT_UPLOADED where it was dropped since."""
        size = max(0, min(size, self.size - offset))
        if not self._begin <= offset <= offset + size <= self._begin + len(self._block):
            self._block = b""
            wanted = min(max(size, READ_BYTES), self.size - offset)
            self._begin, self._block = offset, self._backend.read(self._key, offset, wanted)
        data = self._block[offset - self._begin : offset - self._begin + size]
        if offset + size >= self._begin + len(self._block):
            self._block = b""
        return data

    def close(self) -> None:
        """Nothing is held."""
        self._block = b""


class ObjectStoreBackend:
    """Errors of all: STORE_UNAVAILABLE. Making one: CONFIG_INVALID, FILE_NOT_FOUND, TOKEN_FILE_EXPOSED."""

    is_remote = True

    def __init__(self, place: FileStorePlace, files: FileSettings) -> None:
        self.place = str(place)
        self._bucket, self._prefix = place.bucket, place.prefix
        self._is_closed = threading.Event()
        self._large = threading.BoundedSemaphore(LARGE_AT_ONCE)
        self._fs: Any = _file_system(files)

    def prepare(self) -> None:
        """Look whether the bucket is there and may be used. Errors: CONFIG_INVALID."""
        try:
            self._call("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        except FileNotFoundError:
            why = f"files.store is {self.place}, and there is no bucket {self._bucket}"
            step = f"Make it: aws s3 mb s3://{self._bucket}; or correct files.store, files.s3_endpoint, files.s3_region"
            raise GpufleetError(Reason.CONFIG_INVALID, why, next_step=step) from None
        except PermissionError as problem:
            raise self._refused(problem) from None
        except Exception as problem:
            if type(problem).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
                raise self._refused("no keys are set") from None
            if _is_refusal(problem):
                raise self._refused(problem) from None
            raise self._away(problem) from problem

    def files(self) -> Iterator[FoundBlob]:
        """Every file, a page at a time; parts of files that nobody finishes are dropped at its end."""
        for found in self._pages(self._prefix):
            if matched := _OWN_KEY.fullmatch(found["Key"][len(self._prefix) :]):
                key = (UserName(matched["user"]), matched["digest"])
                yield FoundBlob(key, found["Size"], _seconds(found["LastModified"]), is_whole=True)
        self._drop_unfinished()

    def find(self, key: Key) -> FoundBlob | None:
        """What is known of a file; None where it is not stored."""
        head = self._head(_name(key))
        if head is None:
            return None
        return FoundBlob(key, head["ContentLength"], _seconds(head["LastModified"]), is_whole=True)

    def put(self, key: Key, part: Path) -> None:
        """Send a file, unless it is there, and look that all of it is stored."""
        size = part.stat().st_size
        found = self.find(key)
        if found is not None and found.size == size:
            return
        part_bytes = max(PART_BYTES, math.ceil(size / PARTS_MAX))
        is_large = size >= 2 * part_bytes
        path = f"{self._bucket}/{self._prefix}{_name(key)}"
        with self._explained("stored"):
            if is_large:
                with self._large:
                    self._fs.put_file(
                        str(part), path, callback=_ends_with(self._is_closed), chunksize=part_bytes,
                        max_concurrency=PARTS_AT_ONCE,
                    )  # fmt: skip
            else:
                self._fs.put_file(str(part), path, chunksize=part_bytes)
        found = self.find(key)
        if found is None or found.size != size:
            stored = "nothing of it" if found is None else f"{found.size:,} bytes"
            raise self._away(f"of a file of {size:,} bytes it says that it has {stored}")

    def settle(self, key: Key) -> None:
        """What was answered is durable."""

    def open(self, key: Key) -> Reader | None:
        """Read a file; None where it is not stored."""
        found = self.find(key)
        return None if found is None else ObjectReader(self, key, found.size)

    def read(self, key: Key, offset: int, size: int) -> bytes:
        """Bytes of a file. Errors: STORE_UNAVAILABLE, FILE_NOT_UPLOADED."""
        if size <= 0:
            return b""
        data = self._get(_name(key), offset, offset + size)
        if data is None:
            raise GpufleetError(Reason.FILE_NOT_UPLOADED, f"file {key[1]} of {key[0]} is not stored any more")
        if len(data) != size:
            raise self._away(f"it gave {len(data):,} bytes of a file in place of {size:,}")
        return data

    def touch(self, key: Key, at: float) -> bool:
        """An object cannot tell."""
        return True

    def remove(self, key: Key) -> None:
        """Drop a file, if it is there."""
        self._delete(_name(key))

    def read_note(self, name: str) -> tuple[bytes, float] | None:
        """A note, and when it was stored."""
        head = self._head(f"{NOTES}/{name}")
        if head is None or head["ContentLength"] > NOTE_BYTES_MAX:
            return None
        content = self._get(f"{NOTES}/{name}", 0, head["ContentLength"])
        return None if content is None else (content, _seconds(head["LastModified"]))

    def write_note(self, name: str, content: bytes) -> None:
        """Store a note, durably."""
        self._write(f"{NOTES}/{name}", content)

    def notes(self) -> Iterator[FoundNote]:
        """Every note, a page at a time."""
        begin = f"{self._prefix}{NOTES}/"
        for found in self._pages(begin):
            yield FoundNote(found["Key"][len(begin) :], _seconds(found["LastModified"]))

    def remove_note(self, name: str) -> None:
        """Drop a note, if it is there."""
        self._delete(f"{NOTES}/{name}")

    def read_marker(self) -> str | None:
        """The fleet whose files are there; None where nobody's are."""
        with self._explained("read"):
            try:
                return (
                    bytes(self._fs.cat_file(f"{self._bucket}/{self._prefix}{MARKER}")).decode(errors="replace").strip()
                )
            except FileNotFoundError:
                return None

    def write_marker(self, fleet: str) -> None:
        """Say whose files are there. Errors: CONFIG_INVALID where nothing may be written."""
        try:
            self._write(MARKER, f"{fleet}\n".encode())
        except GpufleetError as problem:
            if isinstance(problem.__cause__, PermissionError):
                raise self._refused(problem.__cause__) from None
            raise

    def close(self) -> None:
        """End what is under way, and give up the connections."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        from fsspec.asyn import sync

        loop, creator = self._fs.loop, getattr(self._fs, "_s3creator", None)
        with suppress(Exception):
            sync(loop, _end_tasks, timeout=CLOSE_SECONDS_MAX)
            if creator is not None:
                sync(loop, creator.__aexit__, None, None, None, timeout=CLOSE_SECONDS_MAX)

    def _head(self, name: str) -> dict[str, Any] | None:
        with self._explained("asked"):
            try:
                return dict(self._call("head_object", Bucket=self._bucket, Key=self._prefix + name))
            except FileNotFoundError:
                self._must_be_there()
                return None

    def _get(self, name: str, begin: int, end: int) -> bytes | None:
        if begin == end:
            return b""
        with self._explained("read"):
            try:
                return bytes(self._fs.cat_file(f"{self._bucket}/{self._prefix}{name}", start=begin, end=end))
            except FileNotFoundError:
                self._must_be_there()
                return None

    def _write(self, name: str, content: bytes) -> None:
        with self._explained("written"):
            self._call("put_object", Bucket=self._bucket, Key=self._prefix + name, Body=content)

    def _delete(self, name: str) -> None:
        with self._explained("changed"):
            self._call("delete_object", Bucket=self._bucket, Key=self._prefix + name)

    def _pages(self, begin: str) -> Iterator[dict[str, Any]]:
        more: dict[str, str] = {}
        while True:
            with self._explained("listed"):
                page = self._call(
                    "list_objects_v2", Bucket=self._bucket, Prefix=begin, MaxKeys=PAGE_KEYS, **more
                )  # fmt: skip
            yield from page.get("Contents", ())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _drop_unfinished(self) -> None:
        """Some stores cannot list what is unfinished; they have rules of their own for that."""
        before = time.time() - UNFINISHED_SECONDS_MAX
        with suppress(Exception):
            found = self._call("list_multipart_uploads", Bucket=self._bucket, Prefix=self._prefix)
            for each in found.get("Uploads", ()):
                if _seconds(each["Initiated"]) < before:
                    self._call(
                        "abort_multipart_upload", Bucket=self._bucket, Key=each["Key"], UploadId=each["UploadId"]
                    )  # fmt: skip

    def _call(self, method: str, **words: Any) -> Any:
        return self._fs.call_s3(method, **words)

    def _must_be_there(self) -> None:
        """A bucket that was emptied, or is another one now, says nothing of what is stored."""
        with self._explained("asked"):
            try:
                self._call("head_object", Bucket=self._bucket, Key=self._prefix + MARKER)
            except FileNotFoundError:
                raise self._away("it is not what it was: its bucket is gone, or was emptied") from None

    def _refused(self, why: object) -> GpufleetError:
        return GpufleetError(
            Reason.CONFIG_INVALID,
            f"files.store is {self.place}, and it does not let this scheduler in: {_words(why)}",
            next_step="Give keys that may list, read, write and delete there: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the scheduler's environment, or files.s3_key_file.",
        )

    def _away(self, why: object) -> GpufleetError:
        return GpufleetError(
            Reason.STORE_UNAVAILABLE,
            f"the store of files, {self.place}, is away: {_words(why)}",
            next_step="Try again later; nothing is lost, and an upload goes on where it stands.",
        )

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Whatever fails below here, in a library or the network, is the store's: it cannot be `what`."""
        if self._is_closed.is_set():
            raise self._away("the scheduler stops")
        try:
            yield
        except GpufleetError:
            raise
        except PermissionError as problem:
            raise self._away(f"it cannot be {what}, as it refuses these keys: {_words(problem)}") from problem
        except Exception as problem:
            raise self._away(f"it cannot be {what}: {_words(problem)}") from problem


def _file_system(files: FileSettings) -> Any:
    try:
        from s3fs import S3FileSystem
    except ImportError as problem:
        raise GpufleetError(
            Reason.CONFIG_INVALID,
            f"files.store is {files.store}, and the package that speaks with such a store is missing: {problem.name}",
            next_step="Where the scheduler is: pip install 'gpufleet[s3]'",
        ) from None
    keys: dict[str, Any] = {} if files.s3_key_file is None else dict(_keys_in(files.s3_key_file))
    made = S3FileSystem(
        **keys,
        endpoint_url=files.s3_endpoint or None,
        client_kwargs={"region_name": files.s3_region} if files.s3_region else {},
        config_kwargs={
            "connect_timeout": CONNECT_SECONDS_MAX,
            "read_timeout": READ_SECONDS_MAX,
            "retries": {"max_attempts": 0},  # they are made one storey above
            "max_pool_connections": CONNECTIONS_MAX,
            # Sums that every store knows: newer ones are asked for only where a request must have them.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "s3": {
                "payload_signing_enabled": True,
                "addressing_style": "path" if files.s3_endpoint else "auto",
            },
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    made.retries = TRIES_MAX
    return made


def _is_refusal(problem: Exception) -> bool:
    """Whether a store answered, and will not answer otherwise to the same question, as one of another region."""
    answer = getattr(problem.__cause__ or problem, "response", None)
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(answer, dict) else 0
    return 300 <= status < 500 and status not in (408, 425, 429)


def _keys_in(file: Path) -> dict[str, str]:
    """The keys in a file of the form of ~/.aws/credentials. Errors: as `read_key`."""
    try:
        mode, text = stat.S_IMODE(file.stat().st_mode), file.read_text(errors="replace")
    except OSError as problem:
        why = f"files.s3_key_file: {file} cannot be read: {problem.strerror}"
        raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step="Correct files.s3_key_file.") from None
    if mode & 0o077:
        step = f"chmod 600 {file}"
        raise GpufleetError(Reason.TOKEN_FILE_EXPOSED, f"other accounts can read {file}", next_step=step)
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
        section = parser["default"]
        keys = {"key": section["aws_access_key_id"], "secret": section["aws_secret_access_key"]}
    except (configparser.Error, KeyError):
        raise GpufleetError(
            Reason.CONFIG_INVALID,
            f"{file}, the files.s3_key_file, does not hold [default], aws_access_key_id and aws_secret_access_key",
            next_step="Write it as ~/.aws/credentials is: a line [default], and NAME = VALUE for each of the two.",
        ) from None
    token = section.get("aws_session_token", "")
    return {**keys, "token": token} if token else keys


async def _end_tasks() -> None:
    """What fsspec does just now on its loop, which nobody else has in a scheduler."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _ends_with(closed: threading.Event) -> Any:
    """What a file that goes in parts tells after each of them; it is the moment to give it up."""
    from fsspec.callbacks import Callback

    class _Parts(Callback):  # type: ignore[misc, unused-ignore]
        def relative_update(self, inc: int = 1) -> None:
            """Another part was taken."""
            if closed.is_set():
                raise InterruptedError("the scheduler stops")

    return _Parts()


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def _seconds(at: datetime) -> float:
    return at.astimezone(UTC).timestamp()


def _words(why: object) -> str:
    text = " ".join(str(why).split()) or type(why).__name__
    return text if len(text) <= WORDS_CHARS_MAX else text[:WORDS_CHARS_MAX] + "…"
